import pytest

from bertvision.errors import BertVisionError, edit_distance, lookup, suggestion


def test_lookup():
    table = {"adapter": 1, "mean": 2}
    assert lookup(table, "mean", "head") == 2
    with pytest.raises(BertVisionError, match=r"Unknown head 'adaptr'. Did you mean 'adapter'\? Known: adapter, mean."):
        lookup(table, "adaptr", "head")
    with pytest.raises(BertVisionError, match="Unknown option 'lable'. Did you mean 'label'"):
        lookup({"labels": 1, "label": 2}, "lable", "option")
    with pytest.raises(BertVisionError, match="Unknown head 'zzz'. Known: none."):
        lookup({}, "zzz", "head")


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("lable", ["labels", "label", "table"], "label"),
        ("lable", ["table", "labels"], "table"),
        ("txet", ["next", "text", "test"], "text"),
        ("mprc", ["mnli", "mrpc", "rte"], "mrpc"),
        ("bert-bsae", ["bert-base", "bert-large"], "bert-base"),
    ],
)
def test_the_suggestion_is_the_closest_name(name, known, meant):
    assert suggestion(name, known) == f" Did you mean {meant!r}?"
    assert suggestion(name, known[::-1]) == f" Did you mean {meant!r}?"


def test_no_suggestion_for_a_name_unlike_all_others():
    assert suggestion("zzz", ["label", "text"]) == "" and suggestion("", ["a"]) == "" and suggestion("x", []) == ""


def test_edit_distance_counts_a_swap_as_one():
    assert [edit_distance("abcd", word) for word in ("abcd", "abdc", "abc", "xbcd", "dcba", "")] == [0, 1, 1, 1, 3, 4]
