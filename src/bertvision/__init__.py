"""Fine-tune an encoder for a fraction of an epoch, read all its layers once, and train a tiny head on them."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# Before torch is loaded: its threads otherwise spin long while they wait, and on a busy machine starve one another.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")
# Before it allocates: large tensors come and go with every batch, and small pages make that slow.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
# Before it multiplies: kernels are kept by shape, each with memory of its own, and batches have many shapes.
os.environ.setdefault("LRU_CACHE_CAPACITY", "1")  # PyTorch's cache of them, in front of oneDNN's
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16")

if TYPE_CHECKING:
    from bertvision.encoders import ENCODERS, load_encoder
    from bertvision.errors import BertVisionError
    from bertvision.heads import HEADS, build_head
    from bertvision.lab.benchmarks import TASKS
    from bertvision.lab.experiment import Experiment
    from bertvision.lab.pipeline import Comparison, run
    from bertvision.trained_model import TrainedModel, load
    from bertvision.types import HeadShape, Predictions

__version__ = "0.1.0"

# Loaded on first use: importing torch and transformers takes seconds that `bertvision --help` need not.
_HOMES = {
    "run": "lab.pipeline",
    "load": "trained_model",
    "Experiment": "lab.experiment",
    "Comparison": "lab.pipeline",
    "TrainedModel": "trained_model",
    "Predictions": "types",
    "HeadShape": "types",
    "TASKS": "lab.benchmarks",
    "HEADS": "heads",
    "ENCODERS": "encoders",
    "build_head": "heads",
    "load_encoder": "encoders",
    "BertVisionError": "errors",
}

__all__ = [
    "ENCODERS",
    "BertVisionError",
    "Comparison",
    "Experiment",
    "HEADS",
    "Predictions",
    "TrainedModel",
    "HeadShape",
    "TASKS",
    "build_head",
    "load",
    "load_encoder",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bertvision' has no attribute {name!r}")
    return getattr(import_module(f"bertvision.{_HOMES[name]}"), name)
