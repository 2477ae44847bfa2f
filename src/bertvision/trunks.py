"""A backbone with every head that reads it: one forward pass for all of them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from bertvision import runtime
from bertvision.backbones import OWN_HEAD, Backbone, load_backbone, weights_hash
from bertvision.errors import BertVisionError
from bertvision.files import load_tensors
from bertvision.heads import Last, Select, build_head, look_through, parse, select_layers
from bertvision.runs import Run
from bertvision.types import Shape, View


class Trunk(Protocol):
    """What reads tokens once, and lets heads read what it saw."""

    weights: str
    """The hash of the backbone: runs with the same one share it."""
    runs_on: str
    """In words, e.g. "torch on cpu"."""

    def read(
        self, inputs: Mapping[str, Tensor], mask: Tensor, wanted: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Read a batch (B, T) once; return each wanted head's logits for the rows it is wanted for."""
        ...


class Part(NamedTuple):
    """A head, and the trunk that it reads."""

    trunk: Trunk
    head: str


class WithPooled(nn.Module):
    """Show a head BERT's pooled [CLS] behind the layers, as it was when the head was trained."""

    def __init__(self, head: nn.Module, last: Last):
        super().__init__()
        self.head = head
        self.last = last

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        pooled = self.last.pool(hidden[:, -1])[:, None, None]  # (B, 1, 1, W), at token 0; zeros elsewhere
        channel = nn.functional.pad(pooled, (0, 0, 0, hidden.shape[2] - 1))
        return self.head(torch.cat([hidden, channel], dim=1), mask)


class TorchTrunk:
    """A frozen backbone in memory, and heads by name."""

    def __init__(self, backbone: Backbone, weights: str):
        self.backbone = backbone.to(runtime.device()).eval().requires_grad_(False)
        self.weights = weights
        self.heads: dict[str, nn.Module] = {}
        self.runs_on = f"torch on {runtime.device().type}"

    def states(self, inputs: dict[str, Tensor], mask: Tensor, names: Iterable[str]) -> dict[str, Tensor]:
        """Return what each head reads: one pass for all, and one more if any has the texts of pairs read apart."""
        apart, layers = {name: _reads_apart(self.heads[name]) for name in names}, self.backbone.layers
        hidden = self.backbone(inputs, mask, range(-layers if any(apart.values()) else 0, layers))
        return {name: hidden if reads else hidden[:, -layers:] for name, reads in apart.items()}

    @torch.inference_mode()
    def read(
        self, inputs: Mapping[str, Tensor], mask: Tensor, wanted: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Read a batch once; each head reads the states of its rows."""
        device = runtime.device()
        mask = mask.to(device)
        states = self.states({name: each.to(device) for name, each in inputs.items()}, mask, wanted)
        found = {}
        for name, rows in wanted.items():
            hidden = states[name]
            if len(rows) == len(mask):
                found[name] = self.heads[name](hidden, mask).float().cpu().numpy()[rows]
            else:
                chosen = torch.from_numpy(rows).to(device)
                found[name] = self.heads[name](hidden[chosen], mask[chosen]).float().cpu().numpy()
        return found


def _reads_apart(head: nn.Module) -> bool:
    return any(isinstance(part, Select) and part.chosen[0] < 0 for part in head.modules())


class Trunks:
    """Backbones by the hash of their weights, each loaded once however many runs read it."""

    def __init__(self, backbone: str = ""):
        """With `backbone`, read that one wherever the runs say theirs is; it must be the same."""
        self.given = backbone
        self.loaded: dict[str, TorchTrunk] = {}

    def add(self, run: Run) -> Part:
        """Return the run's head on its backbone, loading what is not there yet."""
        if run.kind == "bert":
            return self.add_own(run)
        trunk, name = self._trunk(run), str(run.directory.resolve())
        if name not in trunk.heads:
            shape = Shape(**run.experiment["shape"])
            head = build_head(run.name, shape)
            head.load_state_dict(run.weights())
            # Trained beside a head that has texts read apart, it need not look at states that have them.
            lowest = -shape.own_layers if _reads_apart(head) else 0
            seen = View(layers=tuple(range(lowest, shape.own_layers)), pooled=shape.pooled)
            look_through(head, seen, shape.own_layers)
            if parse(run.name)[1].get("pooled"):
                head = WithPooled(head, self._own_head(run))
            trunk.heads[name] = head.to(runtime.device()).eval().requires_grad_(False)
        return Part(trunk, name)

    def add_own(self, run: Run) -> Part:
        """Return BERT's own head, as it was fine-tuned with the run's backbone."""
        trunk, name = self._trunk(run), f"BERT of {own_head_file(run).resolve()}"
        if name not in trunk.heads:
            trunk.heads[name] = self._own_head(run)
        return Part(trunk, name)

    def _trunk(self, run: Run) -> TorchTrunk:
        weights = run.experiment["weights"]
        if weights not in self.loaded:
            where = self.given or (str(run.backbone) if run.has_backbone else run.experiment["backbone"])
            backbone = load_backbone(where).backbone
            if weights_hash(backbone) != weights:
                why = "" if self.given or run.has_backbone else " It was shared without its own, which is fine-tuned."
                raise BertVisionError(
                    f"The backbone at {where} is not the one {run.directory} was trained on: its weights differ.{why} "
                    "Name the right one, or train the head again."
                )
            self.loaded[weights] = TorchTrunk(backbone, weights)
        return self.loaded[weights]

    def _own_head(self, run: Run) -> Last:
        shape = run.experiment["shape"]
        last = Last(
            Shape(**shape | {"layers": shape["layers"] - shape.get("pooled", False), "pooled": False, "apart": False})
        )
        last.load_state_dict(load_tensors(own_head_file(run), "head of BERT's own")[0])
        return last.to(runtime.device()).eval().requires_grad_(False)


def own_head_file(run: Run) -> Path:
    """Where BERT's own head of the run's task is: with a shared run, else with its backbone."""
    name = run.experiment.get("own_head", OWN_HEAD)
    beside = run.directory / name
    return beside if beside.is_file() else run.backbone / name


def layers_read(run: Run) -> dict[str, Any]:
    """Say which layers a run's head reads, and how it weighs them where it learned that."""
    if "reads" in run.experiment:  # an exported run: its weights are in the graph
        return run.experiment["reads"]
    shape = run.experiment["shape"]
    available = shape["layers"] - shape.get("pooled", False)
    if run.kind == "bert":
        return {"of": available, "layers": [available - 1], "pooled": False, "texts": "together", "weights": None}
    name, options = parse(run.name)
    layers = [available - 1] if name == "last" else select_layers(options.get("layers", "all"), available)
    pooled, weights = bool(options.get("pooled")), None
    for key, value in run.weights().items():
        if key.endswith("pool.weights") and value.ndim == 1 and len(value) == len(layers) + pooled:
            weights = value.softmax(dim=0).tolist()
    texts = options.get("texts", "together")
    return {"of": available, "layers": layers, "pooled": pooled, "texts": texts, "weights": weights}
