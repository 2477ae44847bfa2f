"""Saving, loading and sharing of estimators."""

import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bertvision import trained_model
from bertvision.errors import BertVisionError
from bertvision.files import read_json, write_json
from bertvision.inputs import ClassLabelEncoder
from bertvision.tasks import SquadTask, Task, TextTask

if TYPE_CHECKING:
    from bertvision.estimators.base import BaseTextEstimator

ESTIMATOR_FILE = "estimator.json"
"""The parameters of an estimator, its classes and its leaderboard, beside the files of the trained model."""

Estimator = TypeVar("Estimator", bound="BaseTextEstimator")


def save(estimator: "BaseTextEstimator", directory: Path) -> Path:
    """Write the trained model, then the file of the estimator."""
    estimator.model_.save_pretrained(directory)
    labels = getattr(estimator, "label_encoder_", None)
    values = {
        "format": 1,
        "version": version("bertvision"),
        "estimator": type(estimator).__name__,
        "parameters": _plain_parameters(estimator),
        "labels": None if labels is None else labels.to_dict(),
        "leaderboard": estimator._leaderboard_rows(),
        "history": estimator.history_,
    }
    write_json(directory / ESTIMATOR_FILE, values)
    return directory


def load(cls: type[Estimator], source: Any, device: str | None) -> Estimator:
    """Load a model from a directory or from the Hugging Face Hub."""
    directory = _find(source)
    model = trained_model.load(directory)
    expected = estimator_name(model.task)
    if cls.__name__ != expected:
        raise BertVisionError(f"{source} is a model for {expected}. Load it with {expected}.from_pretrained.")
    values = read_json(directory / ESTIMATOR_FILE, "estimator") if (directory / ESTIMATOR_FILE).is_file() else {}
    parameters = {name: value for name, value in values.get("parameters", {}).items() if name in cls().get_params()}
    estimator = cls(**parameters)
    if device is not None:
        estimator.set_params(device=device)
    estimator.model_ = model
    estimator.run_ = model.run
    estimator.history_ = values.get("history", [])
    estimator._saved_leaderboard = values.get("leaderboard", [])
    if isinstance(model.task, TextTask) and model.task.classes:
        labels = values.get("labels")
        encoder = ClassLabelEncoder.from_dict(labels) if labels else ClassLabelEncoder().fit(model.task.classes)
        if encoder.names_ != model.task.classes:  # a model of the previous version: its order of classes counts
            encoder.classes_, encoder.names_ = _in_order(model.task.classes), model.task.classes
        estimator.label_encoder_ = encoder
        estimator.classes_ = encoder.classes_
    return estimator


def estimator_name(task: Task) -> str:
    """Return the name of the estimator for a task."""
    if isinstance(task, SquadTask) and not task.answerable:
        return "QuestionAnswerer"
    return "TextRegressor" if isinstance(task, TextTask) and not task.classes else "TextClassifier"


def push(estimator: "BaseTextEstimator", repo_id: str, *, token: str | None, private: bool | None) -> str:
    """Upload a model to the Hugging Face Hub."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi(token=token)
    with tempfile.TemporaryDirectory() as folder:
        directory = save(estimator, Path(folder) / "model")
        try:
            url = api.create_repo(repo_id, private=private, exist_ok=True)
            commit = api.upload_folder(repo_id=repo_id, folder_path=directory, commit_message="Upload model")
        except HfHubHTTPError as error:
            reason = str(error).strip().splitlines()[0]
            raise BertVisionError(f"The Hub refused the upload to {repo_id!r}: {reason}") from error
        except OSError as error:
            raise BertVisionError(f"Cannot reach the Hub at {api.endpoint}: {error}.") from error
    return str(getattr(commit, "commit_url", None) or url)


def export(estimator: "BaseTextEstimator", format: str, directory: Path, texts: Any) -> Path:
    """Export a model to ONNX; its answers on `texts` are compared with those of the model."""
    from bertvision.inputs import examples_from_rows, read_rows
    from bertvision.serving.onnx_export import export_onnx

    if format != "onnx":
        raise BertVisionError(f"Unknown format {format!r}. Known: onnx.")
    examples = examples_from_rows(read_rows(texts, labelled=False), estimator.model_.task)
    export_onnx([estimator.model_], directory, [examples])
    return directory


def serve(estimator: "BaseTextEstimator", host: str, port: int) -> None:
    """Serve a model until the process is interrupted."""
    from bertvision.serving import ServerSettings
    from bertvision.serving.server import serve as serve_models

    def announce(url: str, note: str) -> None:
        print(f"Serving at {url}. Press Ctrl+C to stop. {note}".strip())

    serve_models([estimator.model_], ServerSettings(), host, port, announce)


def _find(source: Any) -> Path:
    """Return the directory of a model; download it if it is not a directory."""
    directory = Path(source)
    if directory.is_dir():
        return directory
    if not isinstance(source, str) or source.count("/") != 1:
        raise BertVisionError(f"There is no model at {source}. Give the directory that save_pretrained wrote.")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(source, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.md", "*/*"]))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise BertVisionError(
            f"There is no directory {source}, and the Hub did not return a model of this name: {reason}"
        ) from error


def _plain_parameters(estimator: "BaseTextEstimator") -> dict[str, Any]:
    """Return the parameters that JSON can express. Objects are replaced by their names; paths are left out."""
    parameters = {}
    for name, value in estimator.get_params(deep=False).items():
        if name in ("cache_dir", "device"):
            continue
        if name == "encoder":
            value = value if isinstance(value, str) else value.name
            value = Path(value).name if Path(value).is_absolute() else value
        elif name == "head":
            value = str(value)
        elif name == "class_weight" and isinstance(value, dict):
            continue  # its keys may not be strings
        elif name == "random_state" and not isinstance(value, int):
            continue
        parameters[name] = value
    return parameters


def _in_order(names: tuple[str, ...]) -> Any:
    import numpy as np

    return np.array(names)
