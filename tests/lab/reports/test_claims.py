"""The page of claims: only what was measured is printed, and verdicts follow from the numbers."""

from dataclasses import replace

import pytest

from bertvision.errors import BertVisionError
from bertvision.lab.reports.claims import CLAIMS, measure_claims, write_claims
from bertvision.lab.studies import STUDIES
from bertvision.lab.studies.result import StudyResult, StudyTable


def result(study: str, rows: list[dict], task: str = "mrpc", encoder: str = "minilm", **more) -> StudyResult:
    table = StudyTable(columns=["model"], rows=rows)
    return StudyResult(
        study=study, task=task, encoder=encoder, primary="accuracy", seeds=[0, 1], command=f"study {study} {task}",
        **vars(table) | more,
    )  # fmt: skip


def row(model: str, fraction: float, score: float, validation: float = 0.0, **more) -> dict:
    return {"model": model, "fraction": fraction, "score": score, "low": score - 2, "high": score + 2,
            "validation": validation, **more}  # fmt: skip


def over(difference: float, p: float, baseline: str = "BERT") -> dict:
    low, high = difference - 1, difference + 1
    return {f"over {baseline}": difference, f"over {baseline}, low": low, f"over {baseline}, high": high,
            f"p, {baseline}": p}  # fmt: skip


def zoo(*cells: tuple[float, float], **more) -> StudyResult:
    """A head with these differences to BERT and p-values at rising fractions; another head is worse on validation."""
    rows = []
    for number, (difference, p) in enumerate(cells):
        fraction = 0.1 * (number + 1)
        rows += [row("BERT", fraction, 70), row("control: last layer only", fraction, 90, 99, **over(20, 0.0))]
        rows += [row("adapter", fraction, 70 + difference, 5, **over(difference, p))]
        rows += [row("learned", fraction, 99, 1, **over(29, 0.0))]
    return result("zoo", rows, **more)


def verdict(*cells: tuple[float, float]) -> str:
    (found,) = [each for each in measure_claims([zoo(*cells)]) if "same checkpoint" in each.claim.text]
    return found.verdict


def test_verdicts_of_paired_tests():
    assert verdict((3.0, 0.01), (2.0, 0.04)) == "holds"
    assert verdict((3.0, 0.01), (2.0, 0.06)) == "holds in part"
    assert verdict((3.0, 0.01), (-2.0, 0.01)) == "holds in part"
    assert verdict((-3.0, 0.01), (2.0, 0.5)) == "does not hold"
    assert verdict((3.0, 0.2)) == "cannot be told"


def test_every_claim_names_a_study_and_a_published_figure():
    assert {claim.study for claim in CLAIMS} <= set(STUDIES)
    assert len({claim.text for claim in CLAIMS}) == len(CLAIMS) and all(claim.published for claim in CLAIMS)


def test_twice_as_long():
    def outcome(head: float) -> str:
        rows = [row("BERT", 0.5, 60), row("BERT", 0.8, 99), row("BERT", 1, 70), row("adapter", 0.5, head, 1)]
        (found,) = measure_claims([result("curve", rows)])
        assert "BERT at 1: 70.0" in found.measurements[0][1].text
        return found.verdict

    assert [outcome(score) for score in (70, 68, 65)] == ["holds", "cannot be told", "does not hold"]


def test_other_studies():
    early, late = row("adapter", 0.3, 70), row("adapter", 1, 80)
    checkpoints = [row("BERT", 0.3, 60), row("BERT", 1, 70), early, late]
    labels = [row("adapter", 0.3, 70, labels=0.1), row("adapter", 0.3, 72, labels=1), row("BERT", 0.3, 1, labels=1)]
    both = row("BERT + adapter (max)", 0.3, 71, 1, **over(1.0, 0.3, "head"))
    answers = {"model": "adapter", "fraction": 0.5, "wrong": 100.0, "second right": 50.0}
    null = {"model": "adapter", "fraction": 0.5, "wrong HasAns that were null": 40.0}
    weights = [{"layer": layer, "fraction": 0.5, "weight": layer / 10} for layer in range(5)]
    results = [
        result("cross-checkpoint", checkpoints), result("less-data", labels), result("ensemble", [both]),
        result("second-answer", [answers]), result("question-types", [null]), result("layer-weights", weights),
    ]  # fmt: skip
    verdicts = {each.claim.study: each.verdict for each in measure_claims(results)}
    assert verdicts == {
        "cross-checkpoint": "holds", "less-data": "holds", "ensemble": "cannot be told", "second-answer": "holds",
        "question-types": "does not hold", "layer-weights": "holds",
    }  # fmt: skip


def test_the_page_from_files(tmp_path, cli):
    with pytest.raises(BertVisionError, match="experiments/claims-minilm.toml"):
        write_claims([tmp_path], tmp_path / "claims.md")
    for number, one in enumerate([zoo((3.0, 0.01)), zoo((1.0, 0.9), encoder="mpnet", caveats=["one seed"])]):
        one.save(tmp_path / "runs" / "studies" / f"{number}.json")
    code, out, _ = cli("report", tmp_path / "runs", "--claims", tmp_path / "claims.md")
    assert code == 0 and "2 verdicts" in out
    page = (tmp_path / "claims.md").read_text()
    assert "| minilm | mrpc, adapter at 0.1: 73.0, +3.0 (+2.0 to +4.0), p = 0.010 | holds |" in page
    assert "| cannot be told |" in page and "(one seed)" in page and "`study zoo mrpc`" in page
    assert page.count("## ") == 1  # nothing is said of claims that were not measured


def test_encoders_are_told_apart():
    rows = measure_claims([zoo((3.0, 0.01)), replace(zoo((3.0, 0.01)), task="stsb"), zoo((1.0, 0.9), encoder="mpnet")])
    assert [(each.encoder, len(each.measurements), each.verdict) for each in rows] == [
        ("minilm", 2, "holds"), ("mpnet", 1, "cannot be told"),
    ]  # fmt: skip
