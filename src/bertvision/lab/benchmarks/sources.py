"""Data sources of benchmark tasks: official files in a directory, the Hugging Face Hub, or the package registry."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from bertvision.errors import BertVisionError
from bertvision.lab.benchmarks.loading import check_rows, find_directory, hub_tables, load_from_source
from bertvision.sources import PACKAGES
from bertvision.tasks import DataRequest, DataSplits, Example, SquadTask, TextTask, UserFiles
from bertvision.tasks.reading import Table, question
from bertvision.tasks.text import MISMATCHED
from bertvision.token_tasks import TokenTask

logger: logging.Logger = logging.getLogger(__name__)

SQUAD_ROWS = {"v1.1": (87_599, 10_570), "v2.0": (130_319, 11_873)}
"""The official number of questions in train and dev."""


@dataclass(frozen=True, kw_only=True)
class LocalFiles:
    """The official files of a data set."""

    folder: str
    train: str = "train.tsv"
    dev: str = "dev.tsv"
    mismatched: str = ""


@dataclass(frozen=True, kw_only=True)
class HubDataset:
    """A data set on the Hugging Face Hub, where labels are class indices."""

    path: str
    config: str = ""
    texts: tuple[str, ...]
    label: str = "label"
    dev: str = "validation"
    mismatched: str = ""
    rows: tuple[int, ...]
    """The official number of labelled rows in train and dev (and mismatched dev)."""


@dataclass(frozen=True, kw_only=True)
class RegistryPackage:
    """A data set inside a package of the package registry."""

    package: str
    read: Callable[[str], tuple[Table, Table]]
    """Reads train and dev, with the columns of the official files. The argument is the cache directory."""
    rows: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class TextBenchmark:
    """The data sources of a `TextTask`."""

    local: LocalFiles
    hub: HubDataset
    registry: RegistryPackage | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sources that have the data."""
        return ("local", "hub", "registry") if self.registry else ("local", "hub")

    def load(self, task: TextTask, request: DataRequest) -> DataSplits:
        """Load the data set from the source that `request` names."""
        local, registry = self.local, self.registry
        files = [local.train, local.dev] + [local.mismatched] * bool(local.mismatched)
        return load_from_source(
            task.name,
            request,
            local=lambda request: self._load_local(task, request),
            hub=lambda request: self._load_hub(task, request),
            registry=(lambda request: _load_registry(task, registry, request)) if registry else None,
            files=f"{', '.join(files)} (also in a folder {local.folder}/)",
        )

    def _load_local(self, task: TextTask, request: DataRequest) -> DataSplits:
        local = self.local
        directory = find_directory(request, task.name, local.folder, [local.train, local.dev])
        train, dev = (task.to_examples(task.read_rows(directory / file)) for file in (local.train, local.dev))
        counts = [len(train), len(dev)]
        if local.mismatched:
            if (path := directory / local.mismatched).is_file():
                mismatched = task.to_examples(task.read_rows(path), group=MISMATCHED)
                dev, counts = dev + mismatched, [*counts, len(mismatched)]
            else:
                logger.info(f"{directory} has no {path.name}, so only the matched part is scored.")
        check_rows(task.name, counts, self.hub.rows[: len(counts)], request, strict=False)
        path = directory / f"validation{Path(local.train).suffix}"
        validation = task.to_examples(task.read_rows(path)) if path.is_file() else None
        return DataSplits(train=train, dev=dev, validation=validation, source=f"local directory {directory}")

    def _load_hub(self, task: TextTask, request: DataRequest) -> DataSplits:
        hub = self.hub
        splits = ["train", hub.dev] + [hub.mismatched] * bool(hub.mismatched)
        groups = ["", "", MISMATCHED]
        unlabelled = "-1" if task.unlabelled else ""
        numbered = replace(task, texts=hub.texts, label=hub.label, numbered=True, unlabelled=unlabelled)
        parts = [
            # Official rows are taken as they are, so their texts may be empty.
            numbered.to_examples(table, group=group, allow_empty=True)
            for table, group in zip(hub_tables(hub.path, hub.config, splits), groups, strict=False)
        ]
        check_rows(task.name, [len(part) for part in parts], hub.rows, request, strict=True)
        source = f"Hugging Face Hub, {hub.path} {hub.config}".strip()
        return DataSplits(train=parts[0], dev=sum(parts[1:], []), source=source)


def _load_registry(task: TextTask, registry: RegistryPackage, request: DataRequest) -> DataSplits:
    train, dev = (task.to_examples(table) for table in registry.read(request.cache))
    check_rows(task.name, [len(train), len(dev)], registry.rows, request, strict=True)
    version = PACKAGES[registry.package].version
    return DataSplits(train=train, dev=dev, source=f"package registry, {registry.package} {version}")


@dataclass(frozen=True, kw_only=True)
class SquadBenchmark:
    """The data sources of SQuAD 2.0. A local directory may hold SQuAD 1.1 instead."""

    path: str = "rajpurkar/squad_v2"
    """The data set on the Hub."""
    rows: tuple[int, ...] = SQUAD_ROWS["v2.0"]
    """The official number of questions on the Hub; empty: not checked."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sources that have the data."""
        return ("local", "hub")

    def load(self, task: SquadTask, request: DataRequest) -> DataSplits:
        """Load the data set from the source that `request` names."""
        return load_from_source(
            task.name,
            request,
            local=lambda request: _load_squad_directory(task, request),
            hub=lambda request: self._load_hub(task, request),
            registry=None,
            files="train-v2.0.json, dev-v2.0.json (or the same of v1.1)",
        )

    def _load_hub(self, task: SquadTask, request: DataRequest) -> DataSplits:
        train, dev = (_questions(table) for table in hub_tables(self.path, "", ["train", "validation"]))
        check_rows(task.name, [len(train), len(dev)], self.rows, request, strict=True)
        return DataSplits(train=train, dev=dev, source=f"Hugging Face Hub, {self.path}")


def _load_squad_directory(task: SquadTask, request: DataRequest) -> DataSplits:
    root = Path(request.data_dir).expanduser()
    has_v2 = any((directory / "train-v2.0.json").exists() for directory in (root, root / "squad2"))
    has_v1 = any((directory / "train-v1.1.json").exists() for directory in (root, root / "squad"))
    version, folder = ("v1.1", "squad") if has_v1 and not has_v2 else ("v2.0", "squad2")
    train, dev, validation = (f"{part}-{version}.json" for part in ("train", "dev", "validation"))
    directory = find_directory(request, task.name, folder, [train, dev])
    validation_path = str(directory / validation) if (directory / validation).exists() else ""
    files = UserFiles(train=str(directory / train), dev=str(directory / dev), validation=validation_path)
    data = files.load(task, DataRequest())
    counts = [len(data.train), len(data.dev)]
    check_rows(f"SQuAD {version}", counts, SQUAD_ROWS[version], request, strict=False)
    return replace(data, source=f"local directory {directory}")


@dataclass(frozen=True, kw_only=True)
class ConllBenchmark:
    """The data source of a `TokenTask`: a directory with the official files. The official test set is scored."""

    folder: str
    train: str
    validation: str
    dev: str
    rows: tuple[int, int]
    """The official number of sentences in train and in the scored file."""
    address: str
    """Where the files can be downloaded."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sources that have the data."""
        return ("local",)

    def load(self, task: TokenTask, request: DataRequest) -> DataSplits:
        """Load the data set from the directory that `request` names."""
        files = [self.train, self.validation, self.dev]
        if request.source not in ("", "local") or not request.data_dir:
            raise BertVisionError(
                f"{task.name} is read from a directory only. Give --data-dir with {', '.join(files)}, which are at "
                f"{self.address}."
            )
        directory = find_directory(request, task.name, self.folder, files)
        train, validation, dev = (task.read(directory / file) for file in files)
        check_rows(task.name, [len(train), len(dev)], self.rows, request, strict=False)
        return DataSplits(train=train, validation=validation, dev=dev, source=f"local directory {directory}")


def _questions(table: Table) -> list[Example]:
    contexts: dict[str, str] = {}
    examples = []
    for _, (id, title, context, text, answers) in table.pick(["id", "title", "context", "question", "answers"]):
        spans = list(zip(answers["text"], answers["answer_start"], strict=True))
        context = contexts.setdefault(context, context)  # questions about the same passage share one string
        examples.append(question(table.source, id, text, context, spans, title, table.stem == "train"))
    return examples
