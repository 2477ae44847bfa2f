"""The queue and the batch threads, with an encoder that is slow on purpose."""

import asyncio
import threading
import time

import numpy as np
import pytest
import torch

from bertvision.serving.batching import (
    Batcher,
    DeadlineExceeded,
    Overloaded,
    QueuedRow,
    RequestTooLarge,
    run_batch,
    select_batch,
)
from bertvision.serving.settings import ServerSettings


class SlowEncoder:
    """An encoder with two heads: "sum" returns the sum of a row's tokens, "token" the tokens themselves."""

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


def test_a_batch_holds_the_oldest_row_and_rows_of_similar_length():
    shared_encoder, other = SlowEncoder(), SlowEncoder()
    queue = [
        row(shared_encoder, 10),
        row(shared_encoder, 100),
        row(other, 10),
        row(shared_encoder, 12),
        row(shared_encoder, 9),
        row(shared_encoder, 30),
    ]
    assert [each.length for each in select_batch(queue, 40)] == [10, 9, 12]
    assert [each.length for each in select_batch(queue, 5)] == [10]  # a row above the limit is a batch of its own
    assert all(each.shared_encoder is shared_encoder for each in select_batch(queue, 10_000))
    assert len(select_batch([row(shared_encoder, 1) for _ in range(1000)], 10_000)) == 256


def test_each_head_gets_its_rows_without_padding():
    shared_encoder = SlowEncoder()
    rows = [
        row(shared_encoder, 3, 5, ("sum", "token")),
        row(shared_encoder, 5, 7, ("sum",)),
        row(shared_encoder, 2, 1, ("token",)),
    ]
    found = run_batch(rows)
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


def test_concurrent_requests_are_batched():
    shared_encoder = SlowEncoder(0.05)

    async def work(batcher):
        return await asyncio.gather(*(batcher.submit([row(shared_encoder, 4, value)]) for value in range(1, 33)))

    found = run(with_batcher(work))
    assert [each[0]["sum"].tolist() for each in found] == [[4 * value] for value in range(1, 33)]
    assert len(shared_encoder.batches) <= 4 and max(map(len, shared_encoder.batches)) >= 16


def test_a_full_queue_refuses_with_retry_after():
    shared_encoder = SlowEncoder(0.2)

    async def work(batcher):
        tasks = [asyncio.create_task(batcher.submit([row(shared_encoder, 10)])) for _ in range(30)]
        found = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [each for each in found if isinstance(each, Overloaded)]
        answered = [each for each in found if isinstance(each, list)]
        assert len(refused) + len(answered) == 30 and len(answered) >= 10 and len(refused) >= 15
        assert all(1 <= each.retry_after <= 60 for each in refused)
        with pytest.raises(RequestTooLarge, match="accepts at most 100"):
            await batcher.submit([row(shared_encoder, 101)])
        assert batcher.queued_tokens == 0  # refused rows are not queued

    run(with_batcher(work, max_queue_tokens=100, max_batch_tokens=20))


def test_requests_that_would_time_out_are_refused_at_once():
    shared_encoder = SlowEncoder(0.3)

    async def work(batcher):
        await batcher.submit([row(shared_encoder, 10)])  # measures the speed: about 33 tokens a second
        tasks = [asyncio.create_task(batcher.submit([row(shared_encoder, 10)])) for _ in range(8)]
        await asyncio.sleep(0.05)
        with pytest.raises(Overloaded):
            batcher.check_capacity(timeout=0.5)
        batcher.check_capacity(timeout=60)
        await asyncio.gather(*tasks)

    run(with_batcher(work, max_batch_tokens=10))


def test_rows_past_their_deadline_are_dropped_and_reported():
    shared_encoder = SlowEncoder(0.3)

    async def work(batcher):
        first = asyncio.create_task(batcher.submit([row(shared_encoder, 4)]))
        await asyncio.sleep(0.05)
        late = asyncio.create_task(batcher.submit([row(shared_encoder, 9, seconds=0.1)]))
        with pytest.raises(DeadlineExceeded, match="deadline"):
            await late
        await first
        await batcher.submit([row(shared_encoder, 5)])
        assert (9,) not in shared_encoder.batches and batcher.queued_tokens == 0

    run(with_batcher(work, num_batch_threads=1))


def test_two_batches_at_a_time_share_the_cores():
    shared_encoder, found, both = SlowEncoder(0.0), [], threading.Barrier(2)
    real = shared_encoder.read

    def read(*given):  # after the first call, two calls must run at the same time to pass the barrier
        found.append(torch.get_num_threads())
        if len(found) > 1:
            both.wait(30)
        return real(*given)

    shared_encoder.read = read

    async def work(batcher):
        batcher.num_cores = 4
        await batcher.submit([row(shared_encoder, 10)])
        tasks = [asyncio.create_task(batcher.submit([row(shared_encoder, 10)])) for _ in range(2)]
        await asyncio.gather(*tasks)

    mine = torch.get_num_threads()
    run(with_batcher(work, max_batch_tokens=10, num_batch_threads=2))
    assert found[0] == 4 and 2 in found[1:]
    assert torch.get_num_threads() == mine


def test_an_invalid_row_fails_only_its_own_request():
    shared_encoder = SlowEncoder(0.02)

    async def work(batcher):
        rows = [row(shared_encoder, 4, value) for value in (1, 666, 2)]
        return await asyncio.gather(*(batcher.submit([each]) for each in rows), return_exceptions=True)

    good, bad, other = run(with_batcher(work))
    assert good[0]["sum"].tolist() == [4] and other[0]["sum"].tolist() == [8]
    assert isinstance(bad, RuntimeError)


def test_close_processes_the_queue_and_refuses_new_rows():
    shared_encoder = SlowEncoder(0.1)

    async def work(batcher):
        tasks = [asyncio.create_task(batcher.submit([row(shared_encoder, 10)])) for _ in range(6)]
        await asyncio.sleep(0.02)
        closing = asyncio.create_task(asyncio.to_thread(batcher.close))
        found = await asyncio.gather(*tasks)
        assert len(found) == 6
        await closing
        with pytest.raises(Overloaded):
            await batcher.submit([row(shared_encoder, 1)])

    run(with_batcher(work, max_batch_tokens=10))
    assert not [each for each in threading.enumerate() if each.name.startswith("bertvision-batches")]


def test_a_single_client_is_not_delayed():
    shared_encoder = SlowEncoder(0.1)

    async def work(batcher):
        began = time.monotonic()
        for _ in range(5):
            await batcher.submit([row(shared_encoder, 3)])
        assert time.monotonic() - began < 9  # not even once

    run(with_batcher(work, max_batch_delay=10.0))
