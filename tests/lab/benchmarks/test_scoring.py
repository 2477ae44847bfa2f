import json
from pathlib import Path

import pytest

from bertvision.errors import BertVisionError
from bertvision.lab.benchmarks import score_file
from bertvision.tasks import TASKS, DataRequest

GOLDEN = Path(__file__).parent / "golden"
SHARED = Path(__file__).parents[4] / "shared" / "data"


def test_golden_scores():
    """Worked out by hand from the published definition: exact 1 0 0 1 0, F1 1 2/3 0 1 0."""
    scores = score_file(GOLDEN / "squad-dev.json", GOLDEN / "squad-predictions.json")
    assert scores == pytest.approx(
        {
            "exact": 40.0,
            "f1": 100 * (1 + 2 / 3 + 1) / 5,
            "HasAns_exact": 100 / 3,
            "HasAns_f1": 100 * (5 / 3) / 3,
            "NoAns_exact": 50.0,
            "NoAns_f1": 50.0,
            "total": 5,
            "HasAns_total": 3,
            "NoAns_total": 2,
            "ignored": 1,
        }
    )


def test_best_possible_scores_are_kept_apart():
    """Silencing all above 0.2 repairs `wrong-none`; the threshold lies between 0.2 and 0.7."""
    names = ("squad-dev.json", "squad-predictions.json", "squad-no-answer.json")
    scores = score_file(*(GOLDEN / name for name in names))
    assert scores["exact"] == 40.0
    assert scores["best_possible_exact"] == pytest.approx(60.0)
    assert scores["best_possible_f1"] == pytest.approx(100 * (1 + 2 / 3 + 2) / 5)
    assert 0.2 <= scores["best_possible_f1_threshold"] < 0.7


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('{"exact": "cat"}', "lacks 4 of 5 questions, e.g. 'half'"),
        ('["cat"]', "must be a JSON object.*got a list"),
        ('{"exact": ', "not valid JSON"),
    ],
)
def test_bad_predictions_are_sentences(tmp_path, content, why):
    path = tmp_path / "predictions.json"
    path.write_text(content)
    with pytest.raises(BertVisionError, match=why):
        score_file(GOLDEN / "squad-dev.json", path)
    with pytest.raises(BertVisionError, match="No file of predictions at"):
        score_file(GOLDEN / "squad-dev.json", tmp_path / "nothing.json")


def test_bad_values_are_named(tmp_path):
    path = tmp_path / "predictions.json"
    path.write_text(json.dumps(json.loads((GOLDEN / "squad-predictions.json").read_text()) | {"half": None}))
    with pytest.raises(BertVisionError, match="question 'half' must be a text, got None"):
        score_file(GOLDEN / "squad-dev.json", path)
    with pytest.raises(BertVisionError, match="must be a number"):
        predictions = GOLDEN / "squad-predictions.json"
        path.write_text(json.dumps(dict.fromkeys(json.loads(predictions.read_text()), "0.5")))
        score_file(GOLDEN / "squad-dev.json", predictions, path)


needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"NOT CHECKED: no real data at {SHARED}")


@needs_shared
@pytest.mark.parametrize(
    ("name", "exact", "f1"), [("BERT", 78.74, 81.78), ("nlnet", 75.83, 78.78), ("BiDAF", 65.70, 67.88)]
)
def test_published_predictions_score_as_published(name, exact, f1):
    root = SHARED / "squad2"
    scores = score_file(root / "dev-v2.0.json", root / "reference_predictions" / f"{name}.json")
    assert (round(scores["exact"], 2), round(scores["f1"], 2)) == (exact, f1)


@needs_shared
@pytest.mark.parametrize(
    ("name", "train", "dev"),
    [
        ("rte", 2_490, 277),
        ("mrpc", 3_668, 408),
        ("stsb", 5_749, 1_500),
        ("sst2", 67_349, 872),
        ("wnli", 635, 71),
        ("mnli", 9_888, 9_815),
        ("qqp", 16_235, 3_977),
    ],
)
def test_real_glue_files_lose_no_row(name, train, dev):
    data = TASKS[name].load(DataRequest(data_dir=str(SHARED / "glue")))
    assert (len(data.train), len(data.dev)) == (train, dev)


@needs_shared
def test_real_squad_files_lose_no_question():
    data = TASKS["squad2"].load(DataRequest(data_dir=str(SHARED / "squad2-small")))
    assert (len(data.train), len(data.validation or ()), len(data.dev)) == (12_670, 1_198, 2_724)
