"""What SQuAD and MNLI on BERT-large take on 1, 8 and 64 GPUs: time, disk, network, from unit costs.

    python benchmarks/scale.py [--flops 1e14 --disk 2e9 --shared-disk 1e10 --network 1e10]
    python benchmarks/scale.py --measure [--encoder minilm,mpnet] [--clock cpu]

The second measures, on the machine and device at hand, the unit costs that the first is told: tokens and floating-point
operations a second in fine-tuning and in the forward pass, tokens a second of a head's step, bytes of a token's states,
and bytes a second written to a disk. `--clock cpu` counts the seconds of the process instead of those on the wall, for
a machine that others use at the same time.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bertvision import devices
from bertvision.encoders import EncoderWithHead, load_encoder
from bertvision.heads import BertHead, build_head
from bertvision.states import FORMATS
from bertvision.types import HeadShape


@dataclass(frozen=True)
class EncoderCost:
    """What counts in a forward pass."""

    layers: int
    width: int
    parameters: int
    """Of the layers, without embeddings."""

    def forward(self, tokens: float) -> float:
        """Floating-point operations for one token of an input of `tokens` tokens."""
        return 2 * self.parameters + 4 * self.layers * tokens * self.width


@dataclass(frozen=True)
class RowTable:
    """A training set: tokens as measured on real rows (docs/scale.md)."""

    name: str
    rows: int
    tokens: float
    """Of a row, windows added up."""
    length: float
    """Of an input."""

    @property
    def all(self) -> float:
        """Tokens in an epoch."""
        return self.rows * self.tokens


LARGE = EncoderCost(layers=24, width=1024, parameters=302_309_376)
TASKS = [RowTable("SQuAD 2.0", 130_319, 182.8, 178.4), RowTable("MNLI", 392_702, 37.9, 37.9)]
GRADIENTS = 4 * 335_141_888  # bytes of BERT-large's, in float32


def estimate(given: argparse.Namespace) -> None:
    """Print a table for each task."""
    state = FORMATS["int8"].state_bytes(LARGE.width)
    for task in TASKS:
        whole, first = task.all * (LARGE.layers + 1) * state, task.rows * (LARGE.layers + 1) * state
        print(f"\n**{task.name}**: {task.all / 1e6:.1f} million tokens an epoch; states as int8: all tokens ", end="")
        print(f"{whole / 1e9:,.0f} GB, [CLS] alone {first / 1e9:,.1f} GB.\n")
        print("| GPUs | fine-tune 1 epoch | forward pass | read all states once | all-reduce a step |")
        print("|---:|---:|---:|---:|---:|")
        for gpus in (1, 8, 64):
            forward = task.all * LARGE.forward(task.length) / (given.flops * gpus)
            steps = task.rows / (32 * gpus)  # 32 rows on each GPU
            # A ring sends and receives twice the gradients, whatever the number of GPUs.
            reduce = 2 * GRADIENTS / (given.nvlink if gpus <= 8 else given.network) if gpus > 1 else 0.0
            tune = 3 * forward + steps * reduce
            disk = given.disk if gpus <= 8 else given.shared_disk
            reading = f"{_clock(whole / disk)} at {disk / 1e9:g} GB/s"
            print(f"| {gpus} | {_clock(tune)} | {_clock(forward)} | {reading} | {reduce * 1e3:,.0f} ms |")


def measure(given: argparse.Namespace) -> None:
    """Print unit costs of this machine."""
    device = devices.device()
    rows, length = given.rows, given.length
    print(
        f"{rows} x {length} tokens on {device}, {torch.get_num_threads()} threads, {given.precision}, {given.clock} s:"
    )
    print("| encoder | forward tokens/s | GFLOP/s | fine-tuning tokens/s | GFLOP/s | head tokens/s | int8 | float32 |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name in given.encoder.split(","):
        encoder = load_encoder(name, given.precision).encoder
        layers, width = encoder.num_layers - 1, encoder.hidden_size
        parameters = sum(p.numel() for n, p in encoder.named_parameters() if "embeddings" not in n)
        cost = EncoderCost(layers, width, parameters)
        shape = HeadShape(num_layers=layers + 1, max_tokens=length, hidden_size=width, num_outputs=2, per_token=True)
        model = EncoderWithHead(encoder, BertHead(shape)).to(device)
        head = build_head(given.head, shape).to(device)
        inputs = {"input_ids": torch.randint(1000, 2000, (rows, length), device=device)}
        mask = torch.ones(rows, length, dtype=torch.bool, device=device)
        with torch.no_grad():
            states = encoder(inputs, mask)
        forward = rows * length / _median(partial(_forward, encoder, inputs, mask), device, given)
        train = rows * length / _median(partial(_step, model, inputs, mask), device, given)
        on_states = rows * length / _median(partial(_step, head, states, mask), device, given)
        flops = cost.forward(length) / 1e9
        stored = [(layers + 1) * FORMATS[type].state_bytes(width) for type in ("int8", "float32")]
        print(
            f"| {name} | {forward:,.0f} | {forward * flops:,.1f} | {train:,.0f} | {3 * train * flops:,.1f} "
            f"| {on_states:,.0f} | {stored[0]:,} | {stored[1]:,} |",
            flush=True,
        )
    print(f"\nhead: {given.head}; int8 and float32: bytes of a token in a store of all layers")
    with tempfile.NamedTemporaryFile(dir=given.place) as file:
        block = np.random.default_rng(0).integers(0, 255, 64 * 2**20, dtype=np.uint8).tobytes()
        began = time.perf_counter()
        for _ in range(given.blocks):
            file.write(block)
        file.flush()
        print(f"writing {given.blocks * len(block) / (time.perf_counter() - began) / 1e9:.2f} GB/s")


@torch.no_grad()
def _forward(model: nn.Module, inputs: Any, mask: Tensor) -> None:
    model.eval()(inputs, mask)


def _step(model: nn.Module, inputs: Any, mask: Tensor) -> None:
    model.train()(inputs, mask).square().mean().backward()
    model.zero_grad()


def _median(work: Callable[[], None], device: torch.device, given: argparse.Namespace) -> float:
    clock = time.process_time if given.clock == "cpu" else time.perf_counter
    work()
    seconds = []
    for _ in range(given.times):
        began = clock()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(clock() - began)
    return sorted(seconds)[given.times // 2]


def _clock(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def main() -> None:
    """Estimate or measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flops", type=float, default=1e14, help="reached by one GPU")
    parser.add_argument("--disk", type=float, default=2e9, help="bytes/s of a machine's own disk")
    parser.add_argument("--shared-disk", type=float, default=1e10, help="bytes/s of a disk shared by machines")
    parser.add_argument("--nvlink", type=float, default=2e11, help="bytes/s between GPUs of a machine")
    parser.add_argument("--network", type=float, default=1e10, help="bytes/s between machines")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--encoder", default="minilm", help="one or several, with commas")
    parser.add_argument("--head", default="adapter-skip")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--times", type=int, default=5, help="repetitions, of which the median counts")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--length", type=int, default=178)
    parser.add_argument("--blocks", type=int, default=16, help="of 64 MB to write")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--place", type=Path, default=None, help="the disk to measure")
    given = parser.parse_args()
    measure(given) if given.measure else estimate(given)


if __name__ == "__main__":
    main()
