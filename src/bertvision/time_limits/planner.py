"""The plan of a run with a time limit: which stages, on how many rows, how long each takes.

Everything here is arithmetic: unit costs, sizes and limits go in, a plan comes out. The reasons are in
docs/decisions/0041-time-limit.md, and the choices for data of several sizes in docs/time-limits.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from bertvision.time_limits.unit_costs import UnitCosts

CONVEX_KINDS = ("text", "pair")
FIRST_SHARE = 0.06
"""The share of the time for the first model, which the rest is measured against."""
SHORTEST_FIRST, LONGEST_FIRST = 0.8, 4.0
FIRST_ROWS, FEWEST_ROWS = 1000, 48
HEADS_SHARE = {"text": 0.15, "pair": 0.25}
"""The share of the time after fine-tuning for heads on the fine-tuned states. Other kinds of tasks have 0.15."""
EARLY_HEADS_SHARE = 0.12
"""Heads are trained before fine-tuning if they take no larger share of the time. They go on learning after it."""
TUNED_ROWS = 600
"""Rows that fine-tuning must read to be worth its time: below, the time is better spent on heads."""
TUNED_SHARE = 0.25
"""Of small data, the share of an epoch that is enough."""
TUNED_HEAD_ROWS = 500
"""Heads on fine-tuned states need as many rows, or all. The heads that were fine-tuned along have seen more."""
MAX_EPOCHS = 8.0
MAX_ROUNDS = 3
"""How often an encoder is fine-tuned, with other seeds, if the time allows all epochs each time."""
HEAD_EPOCHS = 6.0
FEWEST_EPOCHS = 2.0
CONVEX_SHARE = 0.35
"""The largest share of a stage of heads that a convex head takes."""
CONVEX_PASSES, MEMORY_SPEED, EFFICIENCY = 30, 4e9, 0.5
"""A convex fit passes over its features so often, at so many bytes/s; products of matrices reach this efficiency."""
STRENGTHS = 6
MARGIN_SHARE, MARGIN_SECONDS = 0.012, 0.25
"""What is left unplanned at the end."""
TRAINING_BYTES = 4
"""Copies of the weights of an encoder in training: weights, gradients, two moments."""
FEATURE_SHARE = 0.25
"""The share of the memory that the features of a convex head may take."""
WORKING_BYTES = 400 * 2**20
"""Memory for batches, beside states and weights."""


class StageKind(StrEnum):
    """What a stage does."""

    FIRST = "first model"
    FROZEN = "heads on frozen states"
    FINETUNE = "fine-tuning"
    TUNED = "heads on fine-tuned states"
    SCORE = "scoring and saving"


@dataclass(frozen=True, kw_only=True)
class DataSize:
    """How much data there is."""

    kind: str
    """The kind of examples: "text", "pair", "span" or "tokens"."""
    rows: int
    """Training rows, of which a run reads as many as its time allows."""
    validation_rows: int
    scored_rows: int = 0
    """Rows of the dev split. 0: the validation rows are scored."""
    row_tokens: float
    """The mean number of tokens of a row."""

    @property
    def has_convex(self) -> bool:
        """Whether there are convex heads for this kind of examples."""
        return self.kind in CONVEX_KINDS


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a run may take from now on."""

    seconds: float
    memory: int
    """Bytes for hidden states, features and copies of the encoder."""
    disk: int


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One step of a plan. It ends with a model that is scored on the validation rows."""

    kind: StageKind
    seconds: float
    rows: int = 0
    epochs: float = 0.0
    convex_rows: int = 0
    """Rows that the convex head is fitted to."""
    memory: int = 0
    disk: int = 0
    round: int = 1
    """How many times an encoder has been fine-tuned, this stage included."""

    def describe(self) -> str:
        """Return what is done, for people."""
        epochs = f", {self.epochs:.2g} epochs" if self.epochs else ""
        again = f" (round {self.round})" if self.round > 1 else ""
        if self.kind is StageKind.SCORE:
            return f"{self.kind}: {self.rows:,} rows" if self.rows else str(self.kind)
        return f"{self.kind}{again}: {self.rows:,} rows{epochs}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The stages that are to come."""

    stages: tuple[Stage, ...]
    layers: str = ""
    """The layers that heads read, if memory does not allow all of theirs."""
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """The predicted time of all stages."""
        return sum(stage.seconds for stage in self.stages)


def make_plan(size: DataSize, costs: UnitCosts, limits: Limits, done: Sequence[Stage] = ()) -> Plan:
    """Return the stages that make the best use of the limits, after those that are done."""
    costs, layers, notes = _fit_memory(size, costs, limits)
    score = _score(size, costs)
    left = limits.seconds - score.seconds - max(MARGIN_SECONDS, MARGIN_SHARE * limits.seconds)
    stages: list[Stage] = []
    if not done:
        stages.append(_first(size, costs, left))
        left -= stages[0].seconds
    kinds = {stage.kind for stage in done}
    read = max(
        [stage.rows for stage in [*done, *stages] if stage.kind in (StageKind.FIRST, StageKind.FROZEN)], default=0
    )
    tuned = _tuning(size, costs, limits, left, done)
    if not tuned and limits.disk < costs.encoder_bytes:
        notes.append("the encoder is not fine-tuned, since the disk limit does not hold another one")
    if StageKind.FINETUNE not in kinds and StageKind.FROZEN not in kinds:
        share = EARLY_HEADS_SHARE if tuned else 1.0
        early = _heads(size, costs, limits, StageKind.FROZEN, share * left, read)
        if early and (not tuned or early.rows == _resident(size, costs, limits)):
            stages.append(early)
            tuned = _tuning(size, costs, limits, left - early.seconds, done) if tuned else ()
    return Plan(stages=(*stages, *tuned, score), layers=layers, notes=tuple(notes))


def revise(plan: Plan, size: DataSize, costs: UnitCosts, limits: Limits, done: Sequence[Stage]) -> Plan:
    """Plan again after a stage has ended. `costs` are those that were measured by then."""
    revised = make_plan(size, costs, limits, done)
    return replace(revised, layers=plan.layers)  # heads that go on learning read the same layers


def convex_seconds(rows: int, features: int, flops: float) -> float:
    """Return the time of fitting a convex head: products of matrices, factorizations, and passes over the features."""
    unknowns = min(rows, features)
    operations = 2.0 * rows * features * unknowns + STRENGTHS * (unknowns**3 / 3 + 2.0 * rows * features * 2)
    return operations / (EFFICIENCY * flops) + CONVEX_PASSES * rows * features * 4 / MEMORY_SPEED


def usable_rows(costs: UnitCosts, row_tokens: float, seconds: float) -> int:
    """Return how many rows can be read once within a time."""
    return max(FEWEST_ROWS, int(seconds * max(costs.forward, costs.training) / row_tokens))


def _fit_memory(size: DataSize, costs: UnitCosts, limits: Limits) -> tuple[UnitCosts, str, list[str]]:
    """Return the costs with half of the layers if all layers of the rows do not fit in memory."""
    needed = size.rows * size.row_tokens * costs.state_bytes
    is_tuned = limits.seconds * costs.training / size.row_tokens > TUNED_ROWS
    share = HEADS_SHARE.get(size.kind, 0.15) if is_tuned else 1.0
    affordable = share * limits.seconds * costs.forward * costs.state_bytes  # more are not read
    available = limits.memory - WORKING_BYTES
    if min(needed, affordable) <= available:
        return costs, "", []
    note = f"heads read every second layer, since the states of {size.rows:,} rows do not fit in memory"
    halved = replace(costs, state_bytes=costs.state_bytes // 2, features=costs.features // 2)
    return halved, "every2", [note]


def _resident(size: DataSize, costs: UnitCosts, limits: Limits) -> int:
    """Return how many rows' hidden states fit in memory."""
    available = max(0, limits.memory - WORKING_BYTES) * (1 - FEATURE_SHARE)
    return min(size.rows, max(FEWEST_ROWS, int(available / (size.row_tokens * costs.state_bytes))))


def _first(size: DataSize, costs: UnitCosts, left: float) -> Stage:
    """A convex head on so many frozen states as a small share of the time allows."""
    target = min(LONGEST_FIRST, max(SHORTEST_FIRST, FIRST_SHARE * left))
    target += size.validation_rows * size.row_tokens / costs.forward
    rows = min(size.rows, FIRST_ROWS)
    while rows > FEWEST_ROWS and _first_seconds(size, costs, rows) > target:
        rows = max(FEWEST_ROWS, int(0.8 * rows))
    memory = int(rows * (size.row_tokens * costs.state_bytes + 4 * costs.features))
    seconds = _first_seconds(size, costs, rows)
    return Stage(kind=StageKind.FIRST, seconds=seconds, rows=rows, convex_rows=rows, memory=memory, disk=2**20)


def _first_seconds(size: DataSize, costs: UnitCosts, rows: int) -> float:
    read = (rows + size.validation_rows) * size.row_tokens / costs.forward
    return read + convex_seconds(rows, costs.features, costs.flops) + costs.writing


def _heads(
    size: DataSize, costs: UnitCosts, limits: Limits, kind: StageKind, seconds: float, read: int = 0
) -> Stage | None:
    """Read states, fit a convex head and train others. None if there is no time for more rows than were `read`."""
    validation = size.validation_rows * size.row_tokens / costs.forward if kind is StageKind.TUNED else 0.0
    fixed = 2 * costs.writing + validation
    rows = _resident(size, costs, limits)
    fewest = 0.0 if size.has_convex and rows > FEWEST_ROWS else FEWEST_EPOCHS
    least = min(size.rows, TUNED_HEAD_ROWS) if kind is StageKind.TUNED else min(size.rows, FEWEST_ROWS)
    while rows >= least:
        tokens = rows * size.row_tokens
        reading = max(0, rows - read) * size.row_tokens / costs.forward
        convex_rows = _convex_rows(rows, costs, limits, CONVEX_SHARE * seconds) if size.has_convex else 0
        spent = fixed + reading + convex_seconds(convex_rows, costs.features, costs.flops)
        epochs = min(HEAD_EPOCHS, (seconds - spent) * costs.head / tokens)
        if epochs >= fewest:
            # A few epochs on some rows teach a head less than a convex head learns from all.
            epochs = epochs if epochs >= FEWEST_EPOCHS else 0.0
            memory = int(tokens * costs.state_bytes + 8 * convex_rows * costs.features)
            return Stage(
                kind=kind,
                seconds=spent + epochs * tokens / costs.head,
                rows=rows,
                epochs=epochs,
                convex_rows=convex_rows,
                memory=memory,
                disk=2**22,
            )
        rows = max(least, int(0.9 * rows)) if rows > least else 0
    return None


def _convex_rows(rows: int, costs: UnitCosts, limits: Limits, seconds: float) -> int:
    """Return how many rows a convex head is fitted to, within a time and a share of the memory."""
    rows = min(rows, max(FEWEST_ROWS, int(FEATURE_SHARE * limits.memory / (8 * costs.features))))
    while rows > FEWEST_ROWS and convex_seconds(rows, costs.features, costs.flops) > seconds:
        rows = int(0.9 * rows)
    return rows


def _tuning(size: DataSize, costs: UnitCosts, limits: Limits, left: float, done: Sequence[Stage]) -> tuple[Stage, ...]:
    """Return fine-tuning and heads on its states, as often as it pays; nothing if there is too little time."""
    rounds = [stage for stage in done if stage.kind is StageKind.FINETUNE]
    if done and done[-1].kind is StageKind.FINETUNE:
        heads = _heads(size, costs, limits, StageKind.TUNED, left)
        following = _tuning(size, costs, limits, left - heads.seconds, [*done, heads]) if heads else ()
        return ((replace(heads, round=len(rounds)), *following)) if heads else ()
    training_memory = (TRAINING_BYTES + 1) * costs.encoder_bytes + WORKING_BYTES
    if len(rounds) >= MAX_ROUNDS or limits.disk < costs.encoder_bytes or limits.memory < training_memory:
        return ()
    epoch = size.rows * size.row_tokens / costs.training
    fixed = size.validation_rows * size.row_tokens / costs.forward + 2 * costs.saving + 2 * costs.writing
    share = HEADS_SHARE.get(size.kind, 0.15)
    most = MAX_EPOCHS * epoch + fixed
    heads = _heads(size, costs, limits, StageKind.TUNED, max(share * left, min(left - most, left / 2)))
    seconds = min(most, left - (heads.seconds if heads else 0.0))
    epochs = (seconds - fixed) / epoch
    enough = min(TUNED_ROWS / size.rows, 1.0) if size.rows > TUNED_ROWS else TUNED_SHARE * TUNED_ROWS / size.rows
    if rounds:  # another round must be as long as the first
        enough = max(enough, 0.8 * rounds[0].epochs)
    if epochs < enough:
        return ()
    tuning = Stage(
        kind=StageKind.FINETUNE,
        seconds=seconds,
        rows=size.rows,
        epochs=epochs,
        memory=TRAINING_BYTES * costs.encoder_bytes + WORKING_BYTES,
        disk=costs.encoder_bytes,
        round=len(rounds) + 1,
    )
    if heads is None:
        return (tuning,)
    heads = replace(heads, round=tuning.round)
    return (tuning, heads, *_tuning(size, costs, limits, left - seconds - heads.seconds, [*done, tuning, heads]))


def _score(size: DataSize, costs: UnitCosts) -> Stage:
    """Predict the dev rows with the best model, and write it."""
    seconds = size.scored_rows * size.row_tokens / costs.forward + costs.writing
    return Stage(kind=StageKind.SCORE, seconds=seconds, rows=size.scored_rows, disk=2**20)
