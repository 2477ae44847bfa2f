"""A run as one directory that can be given away: weights, tokenizer, settings, and a card that says how good it is.

experiment.json, metrics.json   as in a run, so that every command takes the directory for one
head.safetensors                its head; for an ensemble, members/<n>/ hold those of its members
config.json, tokenizer*, ...    the backbone as a Hugging Face directory, or without its weights the rest of it
last.safetensors, bert/         BERT's own head, and the settings of its answers
README.md                       the card
"""

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertvision.encoders import BERT_HEAD_FILE
from bertvision.errors import BertVisionError
from bertvision.files import atomic_directory, require_space, save_tensors
from bertvision.model_card import card
from bertvision.records import RunRecord
from bertvision.runs import Run, is_finished, write_metrics, write_record
from bertvision.shared_encoders import own_head_file

WEIGHTS = re.compile(r"model.*\.safetensors(\.index\.json)?")
# What stands beside a backbone but does not belong to it.
LEFT_OUT = {"checkpoint.json", "point.json", BERT_HEAD_FILE, "README.md"}


def save_pretrained(run: Run, directory: Path, *, encoder: bool = True) -> Path:
    """Write all that answering needs into `directory`; without the backbone, its name and hash stand for it."""
    if run.record.export is not None:
        raise BertVisionError(f"{run.directory} is an exported run; its directory can be given away as it is.")
    if directory.exists() and any(directory.iterdir()) and not is_finished(directory):
        raise BertVisionError(f"{directory} is not empty, and no shared run either. Choose another directory.")
    members = run.members()
    if len({each.record.encoder_hash for each in members or [run]}) > 1:
        raise BertVisionError("This ensemble reads several backbones; one directory holds one. Share its members.")
    first = (members or [run])[0]
    if encoder and not first.has_encoder:
        raise BertVisionError(f"The backbone of {run.directory} is not here. Leave it out, or put it at its place.")
    if encoder:
        size = sum(file.stat().st_size for file in first.encoder_directory.iterdir() if file.is_file())
        require_space(directory, size, "The shared run")
    with atomic_directory(directory) as place:
        _copy_encoder(first, place, weights=encoder)
        for number, member in enumerate(members):
            write_answering(member, place / "members" / str(number), {"encoder_path": "../.."})
        if (bert := run.bert()) is not None and not members:
            write_answering(bert, place / "bert", {"encoder_path": ".."})
        (place / "README.md").write_text(card(run, with_encoder=encoder), encoding="utf-8")
        paths = tuple(f"members/{number}" for number in range(len(members)))
        write_answering(run, place, {"encoder_path": ".", "members": paths})
    return directory


def write_answering(run: Run, place: Path, changes: dict[str, Any], *, weights: bool = True) -> None:
    """Write what of a run turns tokens into answers: experiment, head and metrics, not its predictions."""
    place.mkdir(parents=True, exist_ok=True)
    write_record(place, replace(RunRecord.from_dict(without_places(run.record.to_dict())), **changes))
    if weights and (run.directory / "head.safetensors").is_file():
        save_tensors(place / "head.safetensors", run.weights())
    write_metrics(place, run.metrics)


def copy_tokenizer(run: Run, place: Path) -> None:
    """Copy what turns text into tokens."""
    for file in sorted(run.encoder_directory.iterdir()):
        if file.is_file() and not WEIGHTS.fullmatch(file.name) and file.name not in LEFT_OUT:
            shutil.copyfile(file, place / file.name)


def _copy_encoder(run: Run, place: Path, *, weights: bool) -> None:
    copy_tokenizer(run, place)
    if weights:
        for file in sorted(run.encoder_directory.iterdir()):
            if WEIGHTS.fullmatch(file.name):
                shutil.copyfile(file, place / file.name)
    save_tensors(place / BERT_HEAD_FILE, run.read_tensors(own_head_file(run)))


def without_places(value: Any) -> Any:
    """Shorten every path of this machine to its last part."""
    if isinstance(value, dict):
        return {key: without_places(each) for key, each in value.items()}
    if isinstance(value, list):
        return [without_places(each) for each in value]
    if isinstance(value, str) and os.sep in value:
        return re.sub(r"(?:(?<=^)|(?<=\s))(?:~|\.{0,2})?(?:/[^/\s]+)+/([^/\s]+)/?", r"\1", value)
    return value
