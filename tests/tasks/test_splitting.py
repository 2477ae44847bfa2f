import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertvision.errors import BertVisionError
from bertvision.inputs import require_own_files, split_by_groups, split_by_time, task_from_files
from bertvision.inputs.column_splits import read_times
from bertvision.tasks import TASKS, DataRequest, Example, UserFiles
from bertvision.tasks.splitting import count_of, draw, draw_groups, draw_nested, quantile_bins


@given(st.lists(st.integers(0, 4), min_size=1, max_size=80), st.data(), st.integers(0, 9))
def test_draw_is_exact_and_in_proportion(strata, data, seed):
    count = data.draw(st.integers(0, len(strata)))
    least, leave = data.draw(st.sampled_from([0, 1])), data.draw(st.sampled_from([0, 1]))
    chosen = draw(np.array(strata), count, seed, least=least, leave=leave)
    assert len(chosen) == len(set(chosen.tolist())) == count
    assert chosen.tolist() == sorted(chosen.tolist())
    sizes, drawn = Counter(strata), Counter(np.array(strata)[chosen].tolist())
    if not least and not leave:
        assert all(abs(drawn[each] - count * size / len(strata)) < 1 + 1e-9 for each, size in sizes.items())
    if leave and count <= len(strata) - len(sizes):
        assert all(drawn[each] < size for each, size in sizes.items())


def test_draw_is_the_same_on_every_machine():
    # As drawn when this was written; another draw would make old runs incomparable.
    assert draw(np.array([0, 1] * 10), 6, 0).tolist() == [2, 3, 4, 6, 13, 19]


@given(st.lists(st.integers(0, 6), min_size=2, max_size=60), st.integers(1, 30), st.integers(0, 9))
def test_groups_stay_whole(groups, count, seed):
    _, numbers = np.unique(groups, return_inverse=True)
    if numbers.max() == 0:
        return
    chosen = set(draw_groups(numbers, count, seed).tolist())
    inside = {numbers[row] for row in chosen}
    assert 0 < len(chosen) < len(groups)
    assert chosen == {row for row, group in enumerate(numbers) if group in inside}


def test_one_article_is_split_by_passage_and_one_passage_not_at_all():
    task = TASKS["squad2"]
    examples = [Example(id=str(n), texts=("q", f"context {n // 4}"), label=(), group="t") for n in range(40)]
    train, validation = task.split_validation(examples, 0.2, 0)
    assert len(validation) == 8
    assert not {example.texts[1] for example in train} & {example.texts[1] for example in validation}
    with pytest.raises(BertVisionError, match="one passage"):
        task.split_validation(examples[:4], 0.2, 0)


def test_shares_must_make_sense():
    assert count_of(0.1, 3) == 1 and count_of(0.9, 2) == 1
    for share, count in ((0, 5), (1, 5), (0.5, 1)):
        with pytest.raises(BertVisionError):
            count_of(share, count)
    with pytest.raises(BertVisionError, match="Cannot draw -1"):
        TASKS["rte"].sample([], -1, 0)
    with pytest.raises(BertVisionError, match="Cannot draw -1"):
        TASKS["squad2"].sample([], -1, 0)


def test_bins_of_scores():
    bins = quantile_bins(np.arange(100.0).tolist())
    assert np.bincount(bins).tolist() == [10] * 10
    assert set(quantile_bins([1.0] * 9).tolist()) == {9}, "equal scores fall into one bin"


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(0, 5))
def test_nested_draws_are_nested_and_in_proportion(strata, seed):
    strata = np.array(strata)
    draws = [draw_nested(strata, count, seed) for count in range(len(strata) + 1)]
    for count, (small, large) in enumerate(itertools.pairwise(draws)):
        assert len(small) == count and set(small) < set(large) and list(large) == sorted(set(large))
    for count, drawn in enumerate(draws):
        for stratum in np.unique(strata):
            fair = np.count_nonzero(strata == stratum) * count / len(strata)
            assert abs(np.count_nonzero(strata[drawn] == stratum) - fair) <= len(np.unique(strata))


def test_the_newest_rows_are_chosen_and_scored_on(tmp_path):
    days = np.random.default_rng(0).permutation(40)
    rows = [f"text {day},{'ab'[day % 2]},2024-0{1 + day // 20}-{1 + day % 20:02d}" for day in days]
    (tmp_path / "own.csv").write_text("\n".join(["text,label,day", *rows]))
    task = task_from_files(UserFiles(train=str(tmp_path / "own.csv")))
    splits = split_by_time(task, "day", task.load(DataRequest()), 0.25)
    assert splits.validation is not None
    parts = [
        [int(example.texts[0].split()[1]) for example in part] for part in (splits.train, splits.validation, splits.dev)
    ]
    assert parts == [list(range(24)), list(range(24, 32)), list(range(32, 40))]
    (tmp_path / "own.csv").write_text("text,label,day\na,x,1\nb,y,soon\n")
    with pytest.raises(BertVisionError, match="line 3: the time is 'soon'; expected a number or an ISO date"):
        read_times(task.read_rows(tmp_path / "own.csv"), "day")


def test_groups_stay_in_one_split(tmp_path):
    rows = [f"text {row},{'ab'[row % 2]},author {row % 13}" for row in range(130)]
    (tmp_path / "own.csv").write_text("\n".join(["text,label,author", *rows]))
    task = task_from_files(UserFiles(train=str(tmp_path / "own.csv")))
    splits = split_by_groups(task, "author", task.load(DataRequest()), 0.25)
    assert splits.validation is not None
    parts = [{int(e.texts[0].split()[1]) % 13 for e in part} for part in (splits.train, splits.validation, splits.dev)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 13 and min(map(len, parts)) > 1
    (tmp_path / "own.csv").write_text("text,label,author\nu,x,1\nv,y,1\nw,x,1\nz,y,1\nq,x,1\nr,y,1\n")
    task = task_from_files(UserFiles(train=str(tmp_path / "own.csv")))
    with pytest.raises(BertVisionError, match="All rows have the same 'author', '1'; groups need two or more"):
        split_by_groups(task, "author", task.load(DataRequest()), 0.25)
    with pytest.raises(BertVisionError, match="A split by the column 'author' needs your own file"):
        require_own_files(object(), "author")
