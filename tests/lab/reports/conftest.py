"""Results of real studies, and the report of them."""

from pathlib import Path

import pytest

from bertvision.lab.reports import write_report
from bertvision.lab.studies import StudyOptions, run_studies
from bertvision.pipeline.experiment import make

HOSTILE = "</script><script>document.title='broken'</script><b>bad & awful film</b>"
FAST = {"train": {"epochs": 3, "learning_rate": 1e-2, "batch_size": 8}, "finetune": {"learning_rate": 1e-3}}


@pytest.fixture(scope="session")
def results(tiny, reviews, tmp_path_factory) -> Path:
    """Runs with results of studies, on data that try to break out of a page."""
    place = tmp_path_factory.mktemp("report")
    lines = reviews.read_text().splitlines()
    hostile = [f'"{HOSTILE} {row}",{"pos" if row % 2 else "neg"}' for row in range(30)]
    (place / "data.csv").write_text("\n".join([*lines, *hostile]) + "\n")
    heads = ["learned", "adapter:size=4,token_pooling=max"]
    experiment = make(
        train_file=str(place / "data.csv"), encoder=str(tiny), fractions=[0.5, 1.0], heads=heads, task="films", **FAST
    )
    options = StudyOptions(seeds=[0, 1], shares=[0.0, 1.0], epochs=2)
    names = ["curve", "zoo", "layer-weights"]
    found = list(run_studies(experiment, names, options=options, root=place / "runs"))
    assert len(found) == len(names)
    return place


@pytest.fixture(scope="session")
def page(results) -> Path:
    out = results / "report.html"
    write_report([results / "runs"], out, files=results / "files")
    return out
