import pytest

from bertvision.errors import BertVisionError, lookup


def test_lookup():
    table = {"adapter": 1, "mean": 2}
    assert lookup(table, "mean", "head") == 2
    with pytest.raises(BertVisionError, match=r"Unknown head 'adaptr'. Did you mean 'adapter'\? Known: adapter, mean."):
        lookup(table, "adaptr", "head")
    with pytest.raises(BertVisionError, match="Unknown option 'lable'. Did you mean 'label'"):
        lookup({"labels": 1, "label": 2}, "lable", "option")
    with pytest.raises(BertVisionError, match="Unknown head 'zzz'. Known: none."):
        lookup({}, "zzz", "head")
