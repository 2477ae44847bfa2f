"""Saving, loading, sharing, exporting and serving of estimators."""

import os
import tempfile
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from bertvision import devices, trained_model
from bertvision.errors import BertVisionError
from bertvision.estimators.parameters import check_path
from bertvision.files import inside, read_json, write_json
from bertvision.inputs import ClassLabelEncoder, examples_from_rows, read_texts
from bertvision.runs import Run
from bertvision.sharing import strip_paths
from bertvision.tasks import SquadTask, Task, TextTask
from bertvision.token_tasks import TokenTask
from bertvision.trained_model import TrainedModel

ESTIMATOR_FILE = "estimator.json"
"""The parameters of an estimator, its classes and its leaderboard, beside the files of the trained model."""
MODEL_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.md", "*.onnx", "*.onnx.data"]
"""The files that are downloaded from the Hub. None of them holds code."""


class PersistenceMixin:
    """Methods that save, load, share, export and serve a fitted estimator."""

    model_: TrainedModel
    run_: Run
    history_: list[dict[str, Any]]
    label_encoder_: ClassLabelEncoder
    classes_: np.ndarray
    verbose: int
    _columns: tuple[tuple[str, ...], str]
    _indicators: bool
    _saved_leaderboard: list[dict[str, Any]]
    _validation_texts: list[tuple[str, ...]]

    def save_pretrained(self, directory: str | os.PathLike[str]) -> Path:
        """Save the model, its encoder and tokenizer, and a model card to a directory; return the directory."""
        check_is_fitted(self, "model_")
        directory = self.model_.save_pretrained(check_path(directory, "directory"))
        self._write_estimator(directory)
        return directory

    @classmethod
    def from_pretrained(cls, directory: str | os.PathLike[str], *, device: str | None = None) -> Self:
        """Load a model that `save_pretrained`, `export`, `bertvision share` or the previous version wrote.

        A name that is not a directory is downloaded from the Hugging Face Hub. No code of the model is executed.

        Args:
            directory: The directory of the model, or its name on the Hub.
            device: The device of the estimator, e.g. "cuda". None: a GPU if there is one.
        """
        path = _find(directory)
        with devices.use_device(device) if device is not None else nullcontext():
            model = trained_model.load(path, precision="run")
        expected = estimator_name(model.task)
        if all(parent.__name__ != expected for parent in cls.__mro__):
            raise BertVisionError(f"{directory} is a model for {expected}. Load it with {expected}.from_pretrained.")
        values = _read_estimator(path)
        estimator = cls()
        known = estimator.get_params(deep=False)  # pyright: ignore[reportAttributeAccessIssue]
        parameters = {name: value for name, value in values.get("parameters", {}).items() if name in known}
        estimator.set_params(**parameters, device=device)  # pyright: ignore[reportAttributeAccessIssue]
        if columns := values.get("columns"):
            estimator._columns = (tuple(columns["texts"]), columns["label"])
            rename_columns(model, estimator._columns)
        estimator.model_ = model
        estimator.run_ = model.run
        estimator.history_ = values.get("history", [])
        estimator._saved_leaderboard = values.get("leaderboard", [])
        if classes := getattr(model.task, "classes", ()):
            estimator.label_encoder_ = _label_encoder(values.get("labels"), classes)
            estimator.classes_ = estimator.label_encoder_.classes_
            estimator._indicators = bool(values.get("indicators", False))
        elif isinstance(model.task, TokenTask):
            estimator.classes_ = np.array(model.task.entity_types)
        return estimator

    def push_to_hub(self, repo_id: str, *, token: str | None = None, private: bool | None = None) -> str:
        """Upload the model with its model card to the Hugging Face Hub; return the address of the upload.

        Args:
            repo_id: The name of the repository, e.g. "user/model". It is created if it does not exist.
            token: The access token. None: the token of `hf auth login`.
            private: Whether a new repository is private. None: the default of the account.
        """
        check_is_fitted(self, "model_")
        with tempfile.TemporaryDirectory() as folder:
            return _upload(self.save_pretrained(Path(folder) / "model"), repo_id, token, private)

    def export(
        self, format: str, directory: str | os.PathLike[str] | None = None, X: Any = None, *, int8: bool = False
    ) -> Path:
        """Export the model; return the directory, which `from_pretrained` and `bertvision serve` read.

        The answers of the export are compared with those of the model. The export is kept only if they agree.

        Args:
            format: "onnx".
            directory: Where to write. None: the directory "onnx" or "onnx-int8" beside the files of the model.
            X: Texts to compare the answers on. None: the validation rows of `fit`.
            int8: Multiply matrices in int8. This is faster and needs less memory; 99 % of the answers must be equal.
        """
        check_is_fitted(self, "model_")
        if format != "onnx":
            raise BertVisionError(f"Unknown format {format!r}. Known: onnx.")
        texts = getattr(self, "_validation_texts", None) if X is None else X
        if texts is None:
            raise BertVisionError("Give texts as X, on which the answers of the export are compared with the model's.")
        from bertvision.serving.onnx_export import export_onnx

        task = self.model_.task
        model = trained_model.load(self.model_.run)  # in float32, whatever precision this machine computes in
        default = self.model_.run.directory / (f"{format}-int8" if int8 else format)
        target = default if directory is None else Path(directory)
        export_onnx([model], target, [examples_from_rows(read_texts(texts, task.text_names), task)], int8=int8)
        self._write_estimator(target)
        return target

    def serve(self, *, host: str = "127.0.0.1", port: int = 8000) -> None:
        """Answer HTTP requests until the process is interrupted. The page at the address shows how to send them.

        Args:
            host: The address to listen on. "0.0.0.0": all network interfaces.
            port: The port to listen on. 0: any free port.
        """
        check_is_fitted(self, "model_")
        if not isinstance(port, int) or not 0 <= port < 2**16:
            raise BertVisionError(f"port must be a number between 0 and 65535, got {port!r}.")
        from bertvision.serving import ServerSettings
        from bertvision.serving.server import serve as serve_models

        def announce(url: str, note: str) -> None:
            if self.verbose:
                print(f"Serving at {url}. Press Ctrl+C to stop. {note}".strip(), flush=True)

        serve_models([self.model_], ServerSettings(), host, port, announce)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the loaded model, which is loaded again from its directory."""
        state: dict[str, Any] = super().__getstate__()  # pyright: ignore[reportAssignmentType]
        state = {name: value for name, value in state.items() if name != "_timed_run"}  # it holds the rows
        return state | {"model_": state["model_"].run.directory} if "model_" in state else state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if isinstance(directory := state.get("model_"), Path):
            model = trained_model.load(directory, precision="run")
            rename_columns(model, state.get("_columns"))
            state = state | {"model_": model}
        super().__setstate__(state)  # pyright: ignore[reportAttributeAccessIssue]

    @abstractmethod
    def _leaderboard_rows(self) -> list[dict[str, Any]]:
        """Return the rows of `leaderboard_`."""

    def _write_estimator(self, directory: Path) -> None:
        """Write the file of the estimator beside the files of the trained model."""
        labels, columns = getattr(self, "label_encoder_", None), getattr(self, "_columns", None)
        parameters: dict[str, Any] = self.get_params(deep=False)  # pyright: ignore[reportAttributeAccessIssue]
        values = {
            "format": 1,
            "version": version("bertvision"),
            "estimator": estimator_name(self.model_.task),
            "parameters": _plain_parameters(parameters),
            "labels": None if labels is None else labels.to_dict(),
            "columns": None if columns is None else {"texts": list(columns[0]), "label": columns[1]},
            "indicators": getattr(self, "_indicators", False),
            "leaderboard": self._leaderboard_rows(),
            "history": self.history_,
        }
        write_json(directory / ESTIMATOR_FILE, values)


def _read_estimator(directory: Path) -> dict[str, Any]:
    """Read the file of the estimator; without one, return no values."""
    path = inside(directory, ESTIMATOR_FILE)
    values = read_json(path, "estimator") if path.is_file() else {}
    types = {"parameters": dict, "columns": dict, "labels": dict, "history": list, "leaderboard": list}
    given = {name: values.get(name) for name in types} if isinstance(values, dict) else {"": values}
    if wrong := [name for name, value in given.items() if not isinstance(value, types.get(name, dict) | None)]:
        raise BertVisionError(f"{path} is damaged: {wrong[0] or 'its content'} is of the wrong type.")
    if columns := values.get("columns"):
        texts, label = columns.get("texts"), columns.get("label")
        if not isinstance(texts, list) or not all(isinstance(name, str) for name in (*texts, label)):
            raise BertVisionError(f"{path} is damaged: its columns are not names.")
    return {name: value for name, value in given.items() if value is not None}


def estimator_name(task: Task) -> str:
    """Return the name of the estimator for a task."""
    if isinstance(task, SquadTask) and not task.answerable:
        return "QuestionAnswerer"
    if isinstance(task, TokenTask):
        return "TokenClassifier"
    return "TextRegressor" if isinstance(task, TextTask) and not task.classes else "TextClassifier"


def rename_columns(model: TrainedModel, columns: tuple[tuple[str, ...], str] | None) -> None:
    """Let a model of texts read the columns of these names: those of the texts, and that of the label."""
    if columns is not None and isinstance(model.task, TextTask):
        texts, label = columns
        model.task = replace(model.task, texts=texts, text_names=texts, label=label)


def _label_encoder(saved: Mapping[str, Any] | None, classes: tuple[str, ...]) -> ClassLabelEncoder:
    """Return the encoder of the labels, whose order is that of the model's classes."""
    encoder = ClassLabelEncoder.from_dict(saved) if saved else ClassLabelEncoder().fit(classes)
    if encoder.names_ != classes:  # a model that an estimator did not train: its classes need not be sorted
        encoder.classes_, encoder.names_ = np.array(classes), classes
    return encoder


def _upload(directory: Path, repo_id: str, token: str | None, private: bool | None) -> str:
    """Upload a directory to the Hugging Face Hub; return the address of the commit."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    from huggingface_hub.utils import httpx

    api = HfApi(token=token)
    try:
        api.create_repo(repo_id, private=private, exist_ok=True)
        commit = api.upload_folder(repo_id=repo_id, folder_path=directory, commit_message="Upload model")
    except HFValidationError as error:
        raise BertVisionError(f"{repo_id!r} is not the name of a repository, such as 'user/model': {error}") from error
    except HfHubHTTPError as error:
        reason = str(error).strip().splitlines()[0]
        raise BertVisionError(f"The Hub refused the upload to {repo_id!r}: {reason}") from error
    except (OSError, httpx.RequestError) as error:
        raise BertVisionError(f"Cannot reach the Hub at {api.endpoint}: {error}") from error
    return str(commit.commit_url)


def _find(source: str | os.PathLike[str]) -> Path:
    """Return the directory of a model; download it if it is not a directory."""
    directory = check_path(source, "directory")
    if directory.is_dir():
        return directory
    if not isinstance(source, str) or source.count("/") != 1 or directory.is_absolute():
        raise BertVisionError(f"There is no model at {source}. Give the directory that save_pretrained wrote.")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(source, allow_patterns=MODEL_FILES))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise BertVisionError(
            f"There is no directory {source}, and the Hub did not return a model of this name: {reason}"
        ) from error


def _plain_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that JSON can express. Objects are replaced by their names; paths are left out."""
    plain = {}
    for name, value in parameters.items():
        if name in ("cache_dir", "device"):
            continue
        if name == "encoder":
            value = value if isinstance(value, str) else value.name
            value = Path(value).name if Path(value).is_absolute() else value
        elif name == "head":
            value = str(value)
        elif name == "class_weight" and isinstance(value, Mapping):
            continue  # its keys may not be strings
        elif name == "random_state" and not isinstance(value, int):
            continue
        elif name == "settings":
            value = strip_paths(value)
        plain[name] = value
    return plain
