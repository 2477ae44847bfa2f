"""Twelve heads on one stream against twelve streams: the same weights, in a fraction of the time.

    python benchmarks/multi_head_training.py [--rows 384] [--cnn]

Prints wall-clock seconds and their ratio, measured in one run on MiniLM over STS-B (package registry), and the largest
difference between the weights of a head trained with the others and alone.
"""

import argparse
import time
from dataclasses import replace

import torch

from bertvision.computed_states import ComputedStates
from bertvision.encoders import load_encoder
from bertvision.heads import HEADS, build_head
from bertvision.pipeline import ExperimentData, prepare
from bertvision.pipeline.experiment import TrainingConfig, make
from bertvision.training import fit
from bertvision.types import Batches, StateView

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
    "adapter:token_pooling=max",
]
OPTIM = TrainingConfig(learning_rate=1e-3, epochs=1, batch_size=32)


def train(data: ExperimentData, states: Batches, specs: list[str], encoder) -> tuple[dict[str, torch.Tensor], float]:
    """Train these heads together; return their weights and the seconds it took."""
    models = {}
    for spec in specs:
        torch.manual_seed(0)
        models[spec] = build_head(spec, data.shape(encoder))
    began = time.perf_counter()
    fit(models, states, data.task.loss, dict.fromkeys(specs, OPTIM))
    seconds = time.perf_counter() - began
    return {
        spec: torch.cat([p.detach().flatten() for p in model.parameters()]) for spec, model in models.items()
    }, seconds


def compare(name: str, data: ExperimentData, states: Batches, specs: list[str], encoder) -> None:
    """Print seconds of a family of heads trained together and one by one."""
    together, shared = train(data, states, specs, encoder)
    alone, worst = 0.0, 0.0
    for spec in specs:
        weights, seconds = train(data, states, [spec], encoder)
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
    data = prepare(make(task="stsb", source="registry", limit=given.rows, limit_dev=8))
    encoder = load_encoder("minilm").encoder.eval().requires_grad_(False)
    tokens = data.shuffled(replace(data.head_training, batch_size=OPTIM.batch_size))
    states = ComputedStates(encoder, tokens, StateView(cross_layers=tuple(range(encoder.num_layers))))
    compare("pooling and adapters", data, states, POOLING_AND_ADAPTERS, encoder)
    if given.cnn:
        family = [name for name in HEADS if ("cnn" in name or "ception" in name) and "dropout" not in name]
        compare("convolutions", data, states, family, encoder)


if __name__ == "__main__":
    main()
