"""Every committed experiment can be read, and names what exists."""

from pathlib import Path

import pytest

from bertvision.errors import BertVisionError
from bertvision.heads import HeadConfig
from bertvision.lab.studies import STUDIES, StudyOptions
from bertvision.pipeline import experiment as config
from bertvision.tasks import TASKS

ROOT = Path(__file__).parents[2] / "experiments"
FILES = sorted(ROOT.glob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_can_be_run(path):
    found = config.load_several(path)
    assert found
    for experiment, study in found:
        options = config.merge(StudyOptions(), study)
        assert experiment.task in TASKS or experiment.data.train_file
        assert set(experiment.head_fractions) <= set(experiment.fractions) and set(options.studies) <= set(STUDIES)
        assert set(options.to) <= set(TASKS)
        for spec in experiment.heads:
            HeadConfig.parse(spec)


def test_a_file_of_one_can_be_run_alone_and_one_of_several_says_how():
    assert config.load(ROOT / "squad-span.toml").task == "squad2"
    with pytest.raises(BertVisionError, match="holds several experiments"):
        config.load(ROOT / "glue-base.toml")


def test_the_tables_of_the_paper_are_covered():
    given = " ".join(study.paper for study in STUDIES.values())
    for part in ("3.1", "3.2", "3.3", "3.4", "4.5", "A.1", "A.2", "A.4"):
        assert part in given
