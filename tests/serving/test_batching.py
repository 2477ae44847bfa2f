"""The queue and its readers, around a trunk that is slow on purpose."""

import asyncio
import threading
import time

import numpy as np
import pytest
import torch

from bertvision.serving.batching import Batcher, Overloaded, QueuedRow, TooLarge, TooLate, choose, read
from bertvision.serving.settings import ServerSettings

pytestmark = pytest.mark.alone


class Slow:
    """A trunk whose logits are the sum of a row's tokens, and their number."""

    weights, runs_on = "0", "nothing"

    def __init__(self, seconds: float = 0.0):
        self.seconds = seconds
        self.batches: list[tuple[int, ...]] = []

    def read(self, inputs, mask, text_ids, wanted):
        self.batches.append(tuple(mask.sum(1).tolist()))
        time.sleep(self.seconds)
        if (inputs["input_ids"] == 666).any():
            raise RuntimeError("poison")
        sums = (inputs["input_ids"] * mask).sum(1).numpy()
        made = {"sum": sums[:, None], "token": inputs["input_ids"].numpy()[..., None]}
        return {head: made[head][rows] for head, rows in wanted.items()}


def row(shared_encoder, length: int, value: int = 1, heads=("sum",), seconds: float = 10.0) -> QueuedRow:
    tokens = {"input_ids": np.full(length, value, dtype=np.int32)}
    return QueuedRow(shared_encoder, tokens, {"input_ids": 0}, time.monotonic() + seconds, set(heads))


def test_the_oldest_goes_with_those_nearest_in_length():
    shared_encoder, other = Slow(), Slow()
    waiting = [
        row(shared_encoder, 10),
        row(shared_encoder, 100),
        row(other, 10),
        row(shared_encoder, 12),
        row(shared_encoder, 9),
        row(shared_encoder, 30),
    ]
    assert [each.length for each in choose(waiting, 40)] == [10, 9, 12]
    assert [each.length for each in choose(waiting, 5)] == [10]  # a row longer than the budget goes alone
    assert all(each.shared_encoder is shared_encoder for each in choose(waiting, 10_000))
    assert len(choose([row(shared_encoder, 1) for _ in range(1000)], 10_000)) == 256


def test_each_head_reads_its_rows_and_padding_is_cut():
    shared_encoder = Slow()
    rows = [
        row(shared_encoder, 3, 5, ("sum", "token")),
        row(shared_encoder, 5, 7, ("sum",)),
        row(shared_encoder, 2, 1, ("token",)),
    ]
    found = read(rows)
    assert [sorted(each) for each in found] == [["sum", "token"], ["sum"], ["token"]]
    assert found[0]["sum"].tolist() == [15] and found[1]["sum"].tolist() == [35]
    assert found[0]["token"].tolist() == [[5]] * 3 and found[2]["token"].tolist() == [[1]] * 2
    assert len(shared_encoder.batches) == 1


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 30))


async def with_batcher(work, **settings):
    batcher = Batcher(ServerSettings(**settings))
    batcher.start()
    try:
        return await work(batcher)
    finally:
        await asyncio.to_thread(batcher.close)


def test_requests_are_read_together():
    shared_encoder = Slow(0.05)

    async def work(batcher):
        return await asyncio.gather(*(batcher.submit([row(shared_encoder, 4, value)]) for value in range(1, 33)))

    found = run(with_batcher(work))
    assert [each[0]["sum"].tolist() for each in found] == [[4 * value] for value in range(1, 33)]
    assert len(shared_encoder.batches) <= 4 and max(map(len, shared_encoder.batches)) >= 16


def test_a_full_queue_refuses_and_says_when_to_come_back():
    shared_encoder = Slow(0.2)

    async def work(batcher):
        tasks = [asyncio.create_task(batcher.submit([row(shared_encoder, 10)])) for _ in range(30)]
        found = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [each for each in found if isinstance(each, Overloaded)]
        answered = [each for each in found if isinstance(each, list)]
        assert len(refused) + len(answered) == 30 and len(answered) >= 10 and len(refused) >= 15
        assert all(1 <= each.seconds <= 60 for each in refused)
        with pytest.raises(TooLarge, match="takes 100 at most"):
            await batcher.submit([row(shared_encoder, 101)])
        assert batcher.waiting == 0  # what was refused takes no room

    run(with_batcher(work, room=100, budget=20))


def test_who_would_wait_in_vain_is_refused_at_once():
    shared_encoder = Slow(0.3)

    async def work(batcher):
        await batcher.submit([row(shared_encoder, 10)])  # measures the speed: about 33 tokens a second
        tasks = [asyncio.create_task(batcher.submit([row(shared_encoder, 10)])) for _ in range(8)]
        await asyncio.sleep(0.05)
        with pytest.raises(Overloaded):
            batcher.check(timeout=0.5)
        batcher.check(timeout=60)
        await asyncio.gather(*tasks)

    run(with_batcher(work, budget=10))


def test_a_passed_deadline_is_neither_read_nor_forgotten():
    shared_encoder = Slow(0.3)

    async def work(batcher):
        first = asyncio.create_task(batcher.submit([row(shared_encoder, 4)]))
        await asyncio.sleep(0.05)
        late = asyncio.create_task(batcher.submit([row(shared_encoder, 9, seconds=0.1)]))
        with pytest.raises(TooLate, match="deadline"):
            await late
        await first
        await batcher.submit([row(shared_encoder, 5)])
        assert (9,) not in shared_encoder.batches and batcher.waiting == 0

    run(with_batcher(work, readers=1))


def test_two_batches_at_a_time_share_the_cores():
    shared_encoder, found, both = Slow(0.0), [], threading.Barrier(2)
    real = shared_encoder.read

    def read(*given):  # the first is alone; the others wait for each other, which one reader could not
        found.append(torch.get_num_threads())
        if len(found) > 1:
            both.wait(30)
        return real(*given)

    shared_encoder.read = read

    async def work(batcher):
        batcher.cores = 4
        await batcher.submit([row(shared_encoder, 10)])
        tasks = [asyncio.create_task(batcher.submit([row(shared_encoder, 10)])) for _ in range(2)]
        await asyncio.gather(*tasks)

    mine = torch.get_num_threads()
    run(with_batcher(work, budget=10, readers=2))
    assert found[0] == 4 and 2 in found[1:]
    assert torch.get_num_threads() == mine


def test_one_bad_row_spoils_no_other():
    shared_encoder = Slow(0.02)

    async def work(batcher):
        rows = [row(shared_encoder, 4, value) for value in (1, 666, 2)]
        return await asyncio.gather(*(batcher.submit([each]) for each in rows), return_exceptions=True)

    good, bad, other = run(with_batcher(work))
    assert good[0]["sum"].tolist() == [4] and other[0]["sum"].tolist() == [8]
    assert isinstance(bad, RuntimeError)


def test_closing_answers_what_waits_and_refuses_the_rest():
    shared_encoder = Slow(0.1)

    async def work(batcher):
        tasks = [asyncio.create_task(batcher.submit([row(shared_encoder, 10)])) for _ in range(6)]
        await asyncio.sleep(0.02)
        closing = asyncio.create_task(asyncio.to_thread(batcher.close))
        found = await asyncio.gather(*tasks)
        assert len(found) == 6
        await closing
        with pytest.raises(Overloaded):
            await batcher.submit([row(shared_encoder, 1)])

    run(with_batcher(work, budget=10))
    assert not [each for each in threading.enumerate() if each.name.startswith("bertvision-batches")]


def test_one_client_alone_never_waits_for_company():
    shared_encoder = Slow(0.1)

    async def work(batcher):
        began = time.monotonic()
        for _ in range(5):
            await batcher.submit([row(shared_encoder, 3)])
        assert time.monotonic() - began < 9  # not even once

    run(with_batcher(work, linger=10.0))
