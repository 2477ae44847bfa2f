"""Fine-tune an encoder for a fraction of an epoch, read all its layers once, and train a tiny head on them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertvision.encoders import ENCODERS, Encoder, load_encoder, register_encoder
    from bertvision.errors import BertVisionError
    from bertvision.estimators import QuestionAnswerer, TextClassifier, TextRegressor, TokenClassifier
    from bertvision.heads import HEADS, build_head, register_head
    from bertvision.hidden_states import HiddenStates, extract, fit_head
    from bertvision.model_groups import ModelGroup
    from bertvision.pipeline import ExperimentResult, run
    from bertvision.pipeline.experiment import Experiment
    from bertvision.tasks import TASKS, register_task
    from bertvision.trained_model import TrainedModel, load
    from bertvision.training import Callback
    from bertvision.types import HeadShape, Predictions

__version__ = "0.2.0.dev0"

# Modules of the public names. They are imported on first use, because importing torch and transformers takes seconds.
_MODULES = {
    "TextClassifier": "estimators",
    "TextRegressor": "estimators",
    "TokenClassifier": "estimators",
    "QuestionAnswerer": "estimators",
    "run": "pipeline",
    "load": "trained_model",
    "Experiment": "pipeline.experiment",
    "ExperimentResult": "pipeline",
    "TrainedModel": "trained_model",
    "ModelGroup": "model_groups",
    "Predictions": "types",
    "HeadShape": "types",
    "TASKS": "tasks",
    "HEADS": "heads",
    "ENCODERS": "encoders",
    "build_head": "heads",
    "load_encoder": "encoders",
    "Encoder": "encoders",
    "register_encoder": "encoders",
    "HiddenStates": "hidden_states",
    "extract": "hidden_states",
    "fit_head": "hidden_states",
    "register_head": "heads",
    "register_task": "tasks",
    "Callback": "training",
    "BertVisionError": "errors",
}

__all__ = [
    "ENCODERS",
    "BertVisionError",
    "Callback",
    "Encoder",
    "ExperimentResult",
    "Experiment",
    "HEADS",
    "HiddenStates",
    "ModelGroup",
    "Predictions",
    "QuestionAnswerer",
    "TextClassifier",
    "TextRegressor",
    "TokenClassifier",
    "TrainedModel",
    "HeadShape",
    "TASKS",
    "build_head",
    "extract",
    "fit_head",
    "load",
    "load_encoder",
    "register_encoder",
    "register_head",
    "register_task",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'bertvision' has no attribute {name!r}")
    return getattr(import_module(f"bertvision.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
