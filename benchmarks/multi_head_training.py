"""Twelve heads on one stream against twelve streams: the same weights, in a fraction of the time.

    python benchmarks/multi_head_training.py [--rows 384] [--cnn]

Prints wall-clock seconds and their ratio, measured in one run on MiniLM over STS-B (package registry), and the largest
difference between the weights of a head trained with the others and alone.
"""

import argparse
import time
from dataclasses import replace

import torch

from bertvision.activations import Streamed
from bertvision.backbones import load_backbone
from bertvision.config import Optim, make
from bertvision.heads import HEADS, build_head
from bertvision.pipeline import Prepared, prepare
from bertvision.training import fit
from bertvision.types import Batches, View

POOLING_AND_ADAPTERS = [
    "mean",
    "learned",
    "adapter",
    "adapter-skip",
    "adapter-independent",
    "adapter-independent-skip",
    "adapter-386",
    "adapter-386-skip",
    "learned-adapter-386-skip",
    "mean-adapter-386-skip",
    "adapter-386-skip-learned",
    "adapter:gather=max",
]
OPTIM = Optim(learning_rate=1e-3, epochs=1, batch_size=32)


def train(prepared: Prepared, states: Batches, specs: list[str], backbone) -> tuple[dict[str, torch.Tensor], float]:
    """Train these heads together; return their weights and the seconds it took."""
    models = {}
    for spec in specs:
        torch.manual_seed(0)
        models[spec] = build_head(spec, prepared.shape(backbone))
    began = time.perf_counter()
    fit(models, states, prepared.task.loss, dict.fromkeys(specs, OPTIM))
    seconds = time.perf_counter() - began
    return {
        spec: torch.cat([p.detach().flatten() for p in model.parameters()]) for spec, model in models.items()
    }, seconds


def compare(name: str, prepared: Prepared, states: Batches, specs: list[str], backbone) -> None:
    """Print seconds of a family of heads trained together and one by one."""
    together, shared = train(prepared, states, specs, backbone)
    alone, worst = 0.0, 0.0
    for spec in specs:
        weights, seconds = train(prepared, states, [spec], backbone)
        alone += seconds
        worst = max(worst, float((weights[spec] - together[spec]).abs().max()))
    print(
        f"{name}: {len(specs)} heads, together {shared:.1f} s, separate {alone:.1f} s, ratio {shared / alone:.3f}, "
        f"largest difference of a weight {worst:.1e}"
    )


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=384)
    parser.add_argument("--cnn", action="store_true", help="also the convolutional family, on the [CLS] token")
    given = parser.parse_args()
    prepared = prepare(make(task="stsb", source="registry", limit=given.rows, limit_dev=8))
    backbone = load_backbone("minilm").backbone.eval().requires_grad_(False)
    tokens = prepared.shuffled(replace(prepared.heads, batch_size=OPTIM.batch_size))
    states = Streamed(backbone, tokens, View(layers=tuple(range(backbone.layers))))
    compare("pooling and adapters", prepared, states, POOLING_AND_ADAPTERS, backbone)
    if given.cnn:
        family = [name for name in HEADS if ("cnn" in name or "ception" in name) and "dropout" not in name]
        compare("convolutions", prepared, states, family, backbone)


if __name__ == "__main__":
    main()
