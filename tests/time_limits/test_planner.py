"""The decisions of the planner, as a table."""

from dataclasses import replace

import pytest

from bertvision.time_limits import DataSize, Limits, Stage, StageKind, UnitCosts, make_plan, revise
from bertvision.time_limits.planner import FEWEST_ROWS, MAX_EPOCHS, MAX_ROUNDS, convex_seconds

COSTS = UnitCosts(
    forward=10_000,
    training=3_000,
    head=20_000,
    flops=50e9,
    disk=3e8,
    encoder_bytes=90_000_000,
    state_bytes=5_376,
    features=5_376,
)
FIRST, FROZEN, FINETUNE, TUNED, SCORE = StageKind
AMPLE = {"memory": 8 * 10**9, "disk": 10**10}


def size(rows: int, tokens: float = 20.0, kind: str = "text", scored: int = 0) -> DataSize:
    return DataSize(kind=kind, rows=rows, validation_rows=min(200, rows), scored_rows=scored, row_tokens=tokens)


@pytest.mark.parametrize(
    ("data", "seconds", "kinds"),
    [
        (size(3_000), 4, [FIRST, FROZEN, SCORE]),
        (size(3_000), 15, [FIRST, FINETUNE, TUNED, SCORE]),
        (size(3_000), 60, [FIRST, FROZEN, FINETUNE, TUNED, SCORE]),
        (size(3_000), 200, [FIRST, FROZEN, FINETUNE, TUNED, SCORE]),
        (size(200), 60, [FIRST, FROZEN, *[FINETUNE, TUNED] * 3, SCORE]),
        (size(200), 300, [FIRST, FROZEN, *[FINETUNE, TUNED] * MAX_ROUNDS, SCORE]),
        (size(60_000), 15, [FIRST, FINETUNE, TUNED, SCORE]),
        (size(3_000, 120), 15, [FIRST, FROZEN, SCORE]),
        (size(3_000, 50, "span"), 60, [FIRST, FINETUNE, TUNED, SCORE]),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "",
)
def test_stages_of_data_and_limits(data, seconds, kinds):
    plan = make_plan(data, COSTS, Limits(seconds=seconds, **AMPLE))
    assert [stage.kind for stage in plan.stages] == kinds
    assert plan.seconds <= seconds
    assert all(stage.epochs <= MAX_EPOCHS for stage in plan.stages)


@pytest.mark.parametrize("rows", [20, 300, 3_000, 300_000])
@pytest.mark.parametrize("tokens", [8.0, 120.0])
@pytest.mark.parametrize("seconds", [2, 5, 15, 60, 300, 3_600])
@pytest.mark.parametrize("kind", ["text", "pair", "tokens"])
def test_a_plan_fits_its_limits(rows, tokens, seconds, kind):
    limits = Limits(seconds=seconds, memory=2 * 10**9, disk=10**9)
    plan = make_plan(size(rows, tokens, kind), COSTS, limits)
    assert plan.stages[0].kind is FIRST and plan.stages[-1].kind is SCORE
    forced = plan.stages[0].seconds + plan.stages[-1].seconds  # the first model and its score are always made
    assert plan.seconds <= max(seconds, forced + 0.3)
    assert all(stage.memory <= limits.memory and stage.disk <= limits.disk for stage in plan.stages)


def test_scoring_is_reserved():
    without = make_plan(size(3_000), COSTS, Limits(seconds=60, **AMPLE))
    with_dev = make_plan(size(3_000, scored=5_000), COSTS, Limits(seconds=60, **AMPLE))
    assert with_dev.stages[-1].seconds > 10 > without.stages[-1].seconds
    assert with_dev.seconds <= 60


def test_without_disk_for_another_encoder_nothing_is_fine_tuned():
    plan = make_plan(size(3_000), COSTS, Limits(seconds=60, memory=8 * 10**9, disk=10**7))
    assert [stage.kind for stage in plan.stages] == [FIRST, FROZEN, SCORE]
    assert "disk limit" in plan.notes[0]


def test_little_memory_means_fewer_layers_then_fewer_rows():
    ample = make_plan(size(20_000), COSTS, Limits(seconds=300, **AMPLE))
    fewer_layers = make_plan(size(20_000), COSTS, Limits(seconds=300, memory=10**9, disk=10**10))
    fewer_rows = make_plan(size(20_000), COSTS, Limits(seconds=300, memory=600 * 10**6, disk=10**10))
    assert ample.layers == "" and fewer_layers.layers == "every2" and "memory" in fewer_layers.notes[0]
    rows = [max(s.rows for s in plan.stages if s.kind in (TUNED, FROZEN)) for plan in (fewer_layers, fewer_rows)]
    assert rows[1] < rows[0] <= 20_000


def test_a_plan_is_revised_with_measured_costs():
    limits = Limits(seconds=60, **AMPLE)
    plan = make_plan(size(3_000), COSTS, limits)
    done = [plan.stages[0]]
    left = replace(limits, seconds=limits.seconds - plan.stages[0].seconds)
    same = revise(plan, size(3_000), COSTS, left, done)
    assert [stage.kind for stage in same.stages] == [stage.kind for stage in plan.stages[1:]]
    slow = replace(COSTS, forward=COSTS.forward / 8, training=COSTS.training / 8)
    slower = revise(plan, size(3_000), slow, left, done)
    assert sum(stage.epochs for stage in slower.stages) < sum(stage.epochs for stage in same.stages)
    late = revise(plan, size(3_000), COSTS, replace(limits, seconds=0.5), done)
    assert [stage.kind for stage in late.stages] == [SCORE]


def test_after_fine_tuning_come_heads_on_its_states():
    plan = make_plan(size(3_000), COSTS, Limits(seconds=60, **AMPLE))
    done = [stage for stage in plan.stages if stage.kind in (FIRST, FROZEN, FINETUNE)]
    revised = revise(plan, size(3_000), COSTS, Limits(seconds=20, **AMPLE), done)
    assert [stage.kind for stage in revised.stages][:1] == [TUNED]


def test_convex_heads_cost_more_with_rows_and_features():
    assert convex_seconds(1_000, 5_000, 1e10) < convex_seconds(3_000, 5_000, 1e10) < convex_seconds(3_000, 9_000, 1e10)


def test_stages_say_what_is_done():
    stage = Stage(kind=FINETUNE, seconds=10, rows=3_000, epochs=1.25, round=2)
    assert stage.describe() == "fine-tuning (round 2): 3,000 rows, 1.2 epochs"
    assert Stage(kind=SCORE, seconds=1).describe() == "scoring and saving"
    assert make_plan(size(20), COSTS, Limits(seconds=60, **AMPLE)).stages[0].rows <= max(20, FEWEST_ROWS)
