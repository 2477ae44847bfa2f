"""The package computes what it computed when golden.json was recorded (record.py)."""

import os
from pathlib import Path

import pytest
from record import CASES, QUICK, SQUAD, compute, differences, read


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Where cases share what they have in common."""
    return tmp_path_factory.mktemp("golden")


@pytest.mark.parametrize("name", QUICK)
def test_results_without_downloads(name, place):
    assert not differences(name, read()[name], compute(name, place))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name not in QUICK])
def test_results_with_downloads(name, place):
    squad = os.environ.get(SQUAD)
    if name == "squad2" and not (squad and Path(squad).is_dir()):
        pytest.skip(f"{SQUAD} does not name a directory with SQuAD 2.0")
    assert not differences(name, read()[name], compute(name, place, squad and Path(squad)))


def test_a_difference_is_found():
    recorded = read()
    for name, records in recorded.items():
        for record in read()[name]:
            assert not differences(name, records, record)
    changed, elsewhere = {name: records[0] for name, records in read().items()}, {"cpu": "another"}
    row = changed["tiny"]["results"]["text"][0]
    row["logits"][0][0] += 1e-3
    assert differences("tiny", recorded["tiny"], changed["tiny"])
    changed["tiny"]["machine"] = changed["store"]["machine"] = elsewhere
    assert not differences("tiny", recorded["tiny"], changed["tiny"])
    row["score"]["accuracy"] += 10.0
    row["logits"][0][0] += 1.0
    assert len(differences("tiny", recorded["tiny"], changed["tiny"])) == 2
    store = next(iter(changed["store"]["results"].values()))
    store["sha256"]["00000.states"] = ""
    assert not differences("store", recorded["store"], changed["store"])
    store["manifest"] = store["manifest"].replace('"version": 1', '"version": 2')
    assert differences("store", recorded["store"], changed["store"])
