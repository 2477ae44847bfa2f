"""What people see in a terminal: the end of `run`, narrow tables, colours, `doctor`, and the charts of `plot`."""

import json
import re
from types import SimpleNamespace

import pytest

import bertvision
from bertvision import pipeline
from bertvision.cli import doctor, output
from bertvision.cli.run_references import _best
from bertvision.lab.reports import run_charts


@pytest.fixture(scope="module")
def finished(tiny, reviews, tmp_path_factory):
    """The result of a run with a head that learns weights of layers."""
    return bertvision.run(
        train_file=str(reviews),
        encoder=str(tiny),
        task="reviews",
        heads=["learned:token_pooling=max"],
        fractions=[1.0],
        train={"epochs": 2, "learning_rate": 1e-2},
        root=tmp_path_factory.mktemp("runs"),
    )


def root_of(result):
    return result.file.parents[3]


def test_plot_draws_every_chart_that_applies(cli, finished, tmp_path):
    code, out, _ = cli("plot", "reviews", "--runs", root_of(finished), "--out", tmp_path / "charts")
    names = {"score-by-seconds", "layers", "confusion", "calibration", "length"}
    assert code == 0 and {path.stem for path in (tmp_path / "charts").glob("*.svg")} == names
    assert "not drawn" not in out and all(f"{name}.svg" in out for name in names)
    counts = run_charts(finished.best)[0]["confusion"].to_dict()
    cells = next(iter(counts["datasets"].values())) if "datasets" in counts else counts["data"]["values"]
    assert sum(cell["rows"] for cell in cells) == len(finished.best.outcomes())
    layers = run_charts(finished.best)[0]["layers"].to_dict()["data"]["values"]
    assert [row["layer"] for row in layers] == ["embedding", "1", "2", "3"]
    assert sum(row["weight"] for row in layers) == pytest.approx(1)


def test_plot_says_what_does_not_apply(cli, finished, tmp_path):
    bert = next(run for run in finished.runs if run.kind == "bert")
    shared = bertvision.load(finished.best).save_pretrained(tmp_path / "shared")
    code, out, err = cli("plot", shared, "--out", tmp_path / "charts")
    assert code == 0, err
    assert "score-by-seconds: not drawn. There are no other runs on the same data." in out
    assert cli("plot", bert.directory, "--out", tmp_path / "bert", "--format", "png")[0] == 0
    assert (tmp_path / "bert" / "calibration.png").read_bytes()[:4] == b"\x89PNG"
    code, _, err = cli("plot", shared, "--format", "gif")
    assert code == 1 and "svg" in err


def test_plot_of_an_ensemble_of_heads(cli, finished):
    members = [run for run in finished.runs if run.kind in ("head", "control")][:2]
    data = pipeline.prepare(pipeline.experiment_of(members[0]))
    combined = pipeline.ensemble(data, members[0].directory.parent, members, "mean")
    charts, _ = run_charts(combined)
    names = {row["model"] for row in charts["score-by-seconds"].to_dict()["data"]["values"]}
    assert f"{members[0].name} + {members[1].name}" in names
    assert cli("plot", combined.directory, "--out", root_of(finished) / "charts-of-an-ensemble")[0] == 0


def test_the_name_of_a_task_means_the_model_that_run_chooses():
    def fake(kind, score, members=()):
        return SimpleNamespace(kind=kind, validation_score=(score, 0.0), members=lambda: members)

    head, other, bert = fake("head", 70.0), fake("head", 69.0), fake("bert", 80.0)
    of_heads, with_bert = fake("ensemble", 72.0, [head, other]), fake("ensemble", 90.0, [bert, head])
    assert _best([bert, head, other, fake("control", 95.0), of_heads, with_bert]) is of_heads
    assert _best([bert, head, other, with_bert]) is head
    assert _best([bert, with_bert]) is bert


def test_the_end_of_a_run_names_the_next_commands(finished, capsys):
    from bertvision.cli.summary import print_summary

    print_summary(finished, root_of(finished))
    text = capsys.readouterr().out
    best = finished.best
    low, high = best.metrics.interval
    assert f"accuracy  {best.primary_score:.2f} (95 %: {low:.2f} to {high:.2f})" in re.sub(
        r" +", lambda m: m[0][:2], text
    )
    bert = next(run for run in finished.runs if run.kind == "bert")
    assert f"{bert.primary_score:.2f} after 1 epoch," in text and str(best.directory) in text
    assert f'bertvision predict reviews "text" --runs {root_of(finished)}' in text
    assert f"bertvision serve reviews --runs {root_of(finished)}" in text


@pytest.mark.parametrize("width", [80, 120])
def test_tables_leave_columns_out_before_they_fold_names(finished, monkeypatch, capsys, width):
    monkeypatch.setenv("COLUMNS", str(width))
    output.print_comparison(finished.to_rows(), "text")
    lines = capsys.readouterr().out.splitlines()
    table = lines[: len(finished.runs) + 1]
    assert max(map(len, table)) <= width and "control: retrained BERT head" in "\n".join(table)
    assert ("params" in table[0]) is (width == 120)
    assert all("accuracy" in table[0] and word in table[0] for word in ("model", "seconds"))


def test_colours_respect_no_color(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    output.table([{"model": "a", "score": "1", "best": True}], numbers=["score"], bold="best")
    assert not re.search(r"\x1b\[(?:\d+;)*3\d", capsys.readouterr().out)


def test_doctor(cli, tmp_path):
    code, out, _ = cli("doctor", "--no-hub", "--json", "--runs", tmp_path)
    found = json.loads(out)
    assert code == 0 and found["bertvision"] == bertvision.__version__ and found["Hub"] == "not asked"
    assert found["packages"]["torch"] != "missing" and found["extras"]["serve"] == "installed"
    assert found["threads"]["used"] >= 1 and str(tmp_path) in found["runs"] and "free" in found["cache"]
    code, out, _ = cli("doctor", "--runs", tmp_path)  # the tests are offline
    assert code == 0 and "not asked, because HF_HUB_OFFLINE is set" in out and "precision" in out


def test_doctor_says_what_to_do(monkeypatch, tmp_path):
    found = {
        "packages": {"torch": "missing"},
        "extras": {"lab": "without altair"},
        "threads": {"used": 1, "of cores": 8, "OMP_NUM_THREADS": "1"},
        "runs": "runs, 9 GB free, NOT writable",
        "cache": "cache, 9 GB free",
        "Hub": "NOT reached at https://example.org",
    }
    text = "\n".join(doctor._remarks(found))
    assert "pip install bertvision" in text and "'bertvision[lab]'" in text and "1 of 8 cores" in text
    assert "--runs DIR" in text and "--source registry" in text


def test_names_of_runs_are_not_folded_on_narrow_terminals(cli, finished, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = cli("runs", "list", "--runs", root_of(finished))[1]
    table = out.splitlines()[: len(finished.runs) + 1]
    assert max(map(len, table)) <= 80 and all("reviews" in line for line in table[1:]) and "size" not in table[0]
