"""How much of the machine's matmul peak fine-tuning and extraction use, from text to files.

    python benchmarks/speed.py [--task stsb] [--data-dir GLUE] [--rows 1500] [--precision auto] [--json FILE]

The peak is the best of matrix products of the encoder's own shapes and precision, large enough to fill the cores,
measured before and after each stage in the same run. Useful work is what the model's real tokens need: 24 W^2 + 4 T W
multiply-adds x 2 for each layer and token, three times that for training; padding does not count. Fine-tuning is the
whole of `finetune` (a fraction is saved, validation is scored after it), dropout on; extraction is the whole of
`extract` into a store.
"""

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from bertvision import pipeline
from bertvision.devices import resolve_precision
from bertvision.lab import extraction
from bertvision.pipeline import ExperimentData
from bertvision.pipeline.experiment import make


def peak(precision: str, seconds: float = 1.0) -> float:
    """Multiply-adds x 2 a second of a large product, best of a few."""
    a, b = (torch.randn(*shape).to(getattr(torch, precision)) for shape in ((2048, 1536), (1536, 384)))
    best, until = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < until:
        began = time.perf_counter()
        torch.matmul(a, b)
        best = min(best, time.perf_counter() - began)
    return 2 * a.shape[0] * a.shape[1] * b.shape[1] / best


def work(data: ExperimentData, split: str, width: int, layers: int) -> float:
    """What a forward pass over the real tokens of a split takes."""
    lengths = getattr(data, split).features.lengths.astype(float)
    return float((lengths * (24 * width**2 + 4 * lengths * width)).sum() * layers)


def measure(given: argparse.Namespace) -> dict[str, float]:
    """Time both stages once, between two measurements of the peak."""
    found = {"data_dir": given.data_dir} if given.data_dir else {"source": "registry"}
    found |= {"auxiliary_head": "bert-head", "precision": resolve_precision(given.precision)}
    rows = {"limit": given.rows, "limit_dev": given.rows}
    experiment = make(task=given.task, fractions=[1.0], encoder=given.encoder, **rows, **found)
    with tempfile.TemporaryDirectory() as place:
        peaks = [peak(experiment.precision)]
        began = time.perf_counter()
        data = pipeline.prepare(experiment)
        tokenizing = time.perf_counter() - began
        checkpoints = pipeline.finetune(data, Path(place))
        checkpoint = pipeline.open_checkpoint(data, checkpoints, 1.0)
        pipeline.bert_run(data, checkpoint)
        finetuning = time.perf_counter() - began
        loop = checkpoints.record(1.0).seconds
        peaks.append(peak(experiment.precision))
        began = time.perf_counter()
        stored = replace(experiment, states="store", head_fractions=[1.0], heads=["adapter:token_pooling=max"])
        list(extraction.extract(stored, Path(place), ["train"], extraction.ExtractionOptions(encoding="cross")))
        extracting = time.perf_counter() - began
        peaks.append(peak(experiment.precision))
    width, layers = checkpoint.encoder.hidden_size, checkpoint.encoder.num_layers - 1
    forward = {split: work(data, split, width, layers) for split in ("train", "validation", "dev")}
    return {
        "peak": max(peaks),
        "tokens": float(data.train.features.lengths.sum()),
        "tokenize_seconds": tokenizing,
        "finetune_seconds": finetuning,
        "loop_seconds": loop,
        "finetune_share": (3 * forward["train"] + forward["validation"] + forward["dev"]) / finetuning / max(peaks),
        "loop_share": 3 * forward["train"] / loop / max(peaks),
        "extract_seconds": extracting,
        "extract_share": forward["train"] / extracting / max(peaks),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="stsb")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--rows", type=int, default=1500)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    results = []
    for _ in range(given.repeats):
        results.append(each := measure(given))
        print(
            f"{given.task}: peak {each['peak'] / 1e9:.0f} GFLOP/s; finetune {each['finetune_share']:.0%} "
            f"({each['tokens'] / each['loop_seconds']:,.0f} tokens/s, the loop alone {each['loop_share']:.0%}), "
            f"extraction {each['extract_share']:.0%} ({each['tokens'] / each['extract_seconds']:,.0f} tokens/s)",
            flush=True,
        )
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
