"""Save a run as one directory that can be shared: weights, tokenizer, settings and a model card.

experiment.json, metrics.json   as in a run, so that every command accepts the directory as a run
head.safetensors                weights of the head; for an ensemble, members/<n>/ contain those of its members
config.json, tokenizer*, ...    the encoder in the Hugging Face format, with or without its weights
last.safetensors, bert/         the encoder's own fine-tuned head, and the settings of its answers
README.md                       the model card
"""

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertvision.encoders import BERT_HEAD_FILE, load_encoder, weights_hash
from bertvision.errors import BertVisionError
from bertvision.files import atomic_directory, inside, require_space
from bertvision.model_card import model_card
from bertvision.records import RunRecord
from bertvision.runs import Run, is_finished, write_metrics, write_record
from bertvision.shared_encoders import own_head_file

WEIGHT_FILES = re.compile(r"model(-\d+-of-\d+)?\.safetensors|model\.safetensors\.index\.json")
TOKENIZER_FILES = {
    *("config.json", "registered_encoder.json", "tokenizer.json", "tokenizer_config.json"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt"),
    *("spm.model", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "bpe.codes"),
}
"""The files of a configuration and a tokenizer. Only these and the weights are copied from the encoder of a run."""


def save_pretrained(run: Run, directory: Path, *, encoder: bool = True) -> Path:
    """Save all that predictions need to `directory`, and return it.

    Without `encoder`, only the name and the hash of the encoder are saved.
    """
    if run.record.export is not None:
        raise BertVisionError(f"{run.directory} is an exported run. Its directory can be shared as it is.")
    if directory.exists() and any(directory.iterdir()) and not is_finished(directory):
        raise BertVisionError(f"{directory} is not empty and not a shared run. Choose another directory.")
    members = run.members()
    if len({member.record.encoder_hash for member in members or [run]}) > 1:
        raise BertVisionError("The members of this ensemble use several encoders; share each member by itself.")
    first = (members or [run])[0]
    if encoder:
        size = sum(file.stat().st_size for file in _encoder_files(first))
        require_space(directory, size, "The shared run")
    with atomic_directory(directory) as temporary:
        _copy_encoder(first, temporary, weights=encoder)
        for number, member in enumerate(members):
            write_inference_files(member, temporary / "members" / str(number), {"encoder_path": "../.."})
        if (bert := run.bert()) is not None and not members:
            write_inference_files(bert, temporary / "bert", {"encoder_path": ".."})
        (temporary / "README.md").write_text(model_card(run, with_encoder=encoder), encoding="utf-8")
        paths = tuple(f"members/{number}" for number in range(len(members)))
        write_inference_files(run, temporary, {"encoder_path": ".", "members": paths})
    return directory


def write_inference_files(run: Run, directory: Path, changes: dict[str, Any], *, weights: bool = True) -> None:
    """Write the part of a run that predictions need: record, head and metrics, without the saved predictions.

    Args:
        run: The run.
        directory: Where to write.
        changes: Fields of the record to replace.
        weights: Whether to write the weights of the head.
    """
    directory.mkdir(parents=True, exist_ok=True)
    write_record(directory, replace(RunRecord.from_dict(strip_paths(run.record.to_dict())), **changes))
    if weights and (head := inside(run.directory, "head.safetensors")).is_file():
        shutil.copyfile(head, directory / "head.safetensors")
    write_metrics(directory, run.metrics)


def copy_tokenizer(run: Run, directory: Path) -> None:
    """Copy the tokenizer and the configuration of the encoder."""
    for file in _encoder_files(run):
        if not WEIGHT_FILES.fullmatch(file.name):
            shutil.copyfile(file, directory / file.name)


def _encoder_files(run: Run) -> list[Path]:
    """Return the files of the encoder of a run: configuration, tokenizer and weights, and no others."""
    names = sorted(path.name for path in run.encoder_directory.iterdir())
    names = [name for name in names if name in TOKENIZER_FILES or WEIGHT_FILES.fullmatch(name)]
    return [inside(run.encoder_directory, name) for name in names]


def _copy_encoder(run: Run, directory: Path, *, weights: bool) -> None:
    copy_tokenizer(run, directory)
    if weights and not run.has_encoder:  # it was not fine-tuned, so the run has no copy of it
        public = load_encoder(run.encoder_name).encoder
        if weights_hash(public) != run.record.encoder_hash:
            raise BertVisionError(
                f"{run.directory} has no encoder at {run.encoder_directory}, and {run.record.encoder} has other "
                "weights. Share the run without its encoder."
            )
        public.save_pretrained(directory)
    elif weights:
        for file in _encoder_files(run):
            if WEIGHT_FILES.fullmatch(file.name):
                shutil.copyfile(file, directory / file.name)
    shutil.copyfile(own_head_file(run), directory / BERT_HEAD_FILE)


def strip_paths(value: Any) -> Any:
    """Shorten every path in a JSON value to its last part, so that no path of this machine is shared."""
    if isinstance(value, dict):
        return {key: strip_paths(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [strip_paths(entry) for entry in value]
    if isinstance(value, str) and os.sep in value:
        return re.sub(r"(?:(?<=^)|(?<=\s))(?:~|\.{0,2})?(?:/[^/\s]+)+/([^/\s]+)/?", r"\1", value)
    return value
