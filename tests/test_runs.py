import json

import pytest

from bertvision.errors import BertVisionError
from bertvision.runs import Run, find_runs, open_run, slug


def test_unfinished_runs_are_not_found(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "experiment.json").write_text("{}")
    (tmp_path / ".b.tmp").mkdir()
    (tmp_path / ".b.tmp" / "metrics.json").write_text("{}")
    assert list(find_runs(tmp_path)) == []
    with pytest.raises(BertVisionError, match="No finished run"):
        open_run(tmp_path / "a")


def test_another_format_is_refused(tmp_path):
    (tmp_path / "experiment.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(BertVisionError, match="format 99"):
        _ = Run(tmp_path).record


@pytest.mark.parametrize(
    ("name", "expected"),
    [("adapter:size=8,token_pooling=max", "adapter-size-8-token_pooling-max"), ("../x", "x"), ("", "unnamed")],
)
def test_slug(name, expected):
    assert slug(name) == expected
