"""Tiny data in the official formats."""

import json
import random
from pathlib import Path

import pytest

from conftest import review, squad_json


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Official files of three sentence tasks and of SQuAD, with tiny rows."""
    place, draw = tmp_path_factory.mktemp("official"), random.Random(0)
    for folder, text in (("SST-2", "sentence"), ("rotten-tomatoes", "text")):
        (place / folder).mkdir()
        for name, count in (("train", 60), ("dev", 24)):
            rows = [f"{review(row % 2 == 1, draw)}\t{row % 2}" for row in range(count)]
            (place / folder / f"{name}.tsv").write_text("\n".join([f"{text}\tlabel", *rows]) + "\n")
    (place / "MRPC").mkdir()
    for name, count in (("train", 60), ("dev", 24)):
        rows = []
        for row in range(count):
            first, second = review(True, draw), review(row % 2 == 1, draw)
            rows.append(f"{row % 2}\t{row}\t{row}\t{first}\t{second}")
        head = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
        (place / "MRPC" / f"{name}.tsv").write_text("\n".join([head, *rows]) + "\n")
    (place / "train-v2.0.json").write_text(json.dumps(squad_json(6, 4, 0)))
    (place / "dev-v2.0.json").write_text(json.dumps(squad_json(3, 4, 1)))
    return place
