"""Carry out a run with a time limit: measure, plan, work through the stages, plan again after each."""

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
from torch import Tensor

from bertvision import distributed, memory
from bertvision.cpu_optimizations import use_cpu_optimizations
from bertvision.encoders import load_encoder_info
from bertvision.errors import BertVisionError
from bertvision.files import value_hash, write_json
from bertvision.heads import HeadConfig
from bertvision.pipeline.config import PipelineConfig, resolve
from bertvision.pipeline.data import ExperimentData, Split, find_task, load_splits, tokenize
from bertvision.pipeline.experiment import Experiment
from bertvision.pipeline.finetuning import Checkpoint
from bertvision.pipeline.frozen_cache import FrozenCache
from bertvision.pipeline.runner import ExperimentResult
from bertvision.progress import hidden
from bertvision.runs import slug
from bertvision.tasks import DataSplits, Example
from bertvision.time_limits import stages as work
from bertvision.time_limits.best_model import BestModel, Candidate, FittedModel, with_dev
from bertvision.time_limits.clock import Clock, UntilEnd
from bertvision.time_limits.history import HistoryEntry
from bertvision.time_limits.live_view import LiveView
from bertvision.time_limits.planner import (
    FEWEST_EPOCHS,
    FEWEST_ROWS,
    MAX_EPOCHS,
    DataSize,
    Limits,
    Plan,
    Stage,
    StageKind,
    convex_seconds,
    make_plan,
    revise,
    usable_rows,
)
from bertvision.time_limits.rows import RowSource, SplitInOrder, open_rows, trial_rows
from bertvision.time_limits.unit_costs import UnitCosts, measure_costs
from bertvision.training import Callback
from bertvision.types import Predictions

logger: logging.Logger = logging.getLogger(__name__)

VALIDATION_SHARE, VALIDATION_SECONDS = 0.04, 2.5
"""The share of the time in which all validation rows can be read once, and the longest time."""
VALIDATION_ROWS = (60, 3000)
"""The smallest and the largest number of validation rows, if the data have as many."""
DEV_SHARE = 0.15
"""The share of the time for scoring dev rows. If they take longer, some of them are scored."""
FREE_MEMORY = 0.5
"""The share of the free memory that is used without a memory limit."""
CLOSING = 0.1
"""Seconds that are left for what follows the last stage."""
LEAST_MEMORY = 300 * 2**20
SPARE_EPOCHS = 4.0
"""Fine-tuning that the clock ends may take so many times the epochs that were planned, if steps are faster."""
FURTHER_RATE = 0.5
"""The learning rate of fine-tuning that goes on, as a share of the usual one."""
MEASURABLE = 0.5
"""Seconds of work from which speeds are measured again."""
HISTORY_FILE = "history.json"


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A run with limits."""

    config: PipelineConfig
    splits: DataSplits
    root: Path
    clock: Clock
    memory_limit: int = 0
    """Bytes that the process may hold. 0: half of the free memory is used beside what it holds."""
    disk_limit: int = 0
    """Bytes that the run may write. 0: half of the free disk."""
    callbacks: Sequence[Callback] = ()
    encoder: object = None
    """The encoder to start from, if it is loaded."""
    frozen_cache: FrozenCache | None = None
    head: HeadConfig | None = None
    """The head to train, if it is not the default one."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What was measured, and the plan that was made of it."""

    size: DataSize
    costs: UnitCosts
    limits: Limits
    plan: Plan
    seconds: float
    """How long measuring and planning took."""


@dataclass
class TimedRun:
    """A run with a time limit."""

    request: RunRequest
    view: LiveView
    directory: Path = field(init=False)
    best: BestModel = field(init=False)
    history: list[HistoryEntry] = field(default_factory=list)
    done: list[Stage] = field(default_factory=list)
    stages: list[work.EncoderStage] = field(default_factory=list)
    """The encoder as it was loaded, and the one that was fine-tuned last."""
    checkpoint: Checkpoint = field(init=False)
    """The encoder as it was loaded."""
    heads: work.StageHeads = field(init=False)
    source: RowSource = field(init=False)
    data: ExperimentData = field(init=False)
    """The rows that have been tokenized. Models are scored on validation until the last stage, so dev is validation."""
    size: DataSize = field(init=False)
    costs: UnitCosts = field(init=False)
    row_tokens: float = 0.0
    layers: str = ""
    learned: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    """The weights of trained heads, which go on learning."""
    continues: bool = False
    """Whether fine-tuning goes on from the encoder that was fine-tuned last."""

    def __post_init__(self) -> None:
        config = self.request.config
        name = value_hash([time.time_ns(), os.getpid(), config.experiment.to_dict()])
        encoder = slug(Path(config.experiment.encoder).name)
        self.directory = self.request.root / slug(config.task.name) / encoder / name
        self.best = BestModel(self.directory)

    # The parts of a run

    def run(self) -> ExperimentResult:
        """Carry out the plan within the limit, and return the best model."""
        if distributed.num_processes() > 1:
            raise BertVisionError("A time limit is for one process; several train together without one.")
        with self._context():
            forecast = self.prepare()
            self.view.show_plan(forecast.plan, self.request.clock, forecast.seconds)
            return self._protected(lambda: self._begin(forecast))

    def more(self, clock: Clock) -> ExperimentResult:
        """Go on with another limit: fine-tune further from the best encoder, and train the heads further."""
        self.request = replace(self.request, clock=clock)
        self.continues = True
        self.view.restart(clock)
        first = self.done[0]
        tuned = len(self.stages) > 1
        self.done = [first, replace(first, kind=StageKind.FROZEN)] if tuned else [first]
        with self._context():
            limits = self._limits(clock.left - CLOSING)
            plan = make_plan(self.size, self.costs, limits, self.done)
            if plan.stages[0].kind is StageKind.SCORE and tuned:
                ended = [*self.done, replace(first, kind=StageKind.FINETUNE)]
                plan = make_plan(self.size, self.costs, limits, ended)
            plan = replace(plan, layers=self.layers)
            self.view.show_plan(plan, clock, 0.0)
            return self._protected(lambda: self._work(plan))

    @contextmanager
    def _context(self) -> Iterator[None]:
        with use_cpu_optimizations(self.request.config.experiment.cpu_optimizations), hidden(), self.view:
            yield

    def _protected(self, work_through: Callable[[], None]) -> ExperimentResult:
        """Work through the stages. Ctrl-C ends them early, if there is a model."""
        try:
            work_through()
        except KeyboardInterrupt:
            if self.best.run is None:
                raise
            self.view.line("Interrupted: the best model is scored and kept. Press Ctrl-C again to stop at once.")
            self._score(self.request.clock)
            self._add_history("interrupted", 0.0, 0.0, "stopped by Ctrl-C")
        return self._finish()

    def forecast(self) -> Forecast:
        """Return what was measured, and the plan. Nothing is trained."""
        with use_cpu_optimizations(self.request.config.experiment.cpu_optimizations), hidden():
            return self.prepare()

    def plan_for(self, seconds: float) -> Plan:
        """Return the plan of another limit, with the unit costs that were measured."""
        usable = usable_rows(self.costs, self.size.row_tokens, seconds)
        validation, scored = self._held_out_rows(seconds)
        held_out = {"validation_rows": validation, "scored_rows": min(scored, len(self.request.splits.dev))}
        size = replace(self.size, rows=min(usable, len(self.request.splits.train)), **held_out)
        return make_plan(size, self.costs, self._limits(seconds - CLOSING))

    def _held_out_rows(self, seconds: float) -> tuple[int, int]:
        """Return how many validation rows and dev rows at most can be predicted within a limit."""
        readable = self.costs.forward / self.row_tokens
        fewest, most = VALIDATION_ROWS
        validation_rows = int(min(most, max(fewest, min(VALIDATION_SHARE * seconds, VALIDATION_SECONDS) * readable)))
        return validation_rows, max(fewest, int(DEV_SHARE * seconds * readable))

    def prepare(self) -> Forecast:
        """Load the encoder, measure unit costs, draw the rows, and plan. Nothing is trained."""
        began = time.monotonic()
        request, clock = self.request, self.request.clock
        trial = self._with_objects(trial_rows(request.config, request.splits))
        self.checkpoint = work.frozen_checkpoint(trial, self.directory)
        self.heads = work.stage_heads(trial, self.checkpoint.encoder, request.head)
        self.row_tokens = float(trial.train.features.lengths.mean())
        self.costs = measure_costs(
            trial, self.checkpoint, self.heads.configs, self.heads.convex or self.heads.trained, clock.seconds
        )
        usable = usable_rows(self.costs, self.row_tokens, max(1.0, clock.left))
        self.source = open_rows(request.config, request.splits, usable, *self._held_out_rows(clock.seconds))
        self.size = DataSize(
            kind=self.source.task.example_kind,
            rows=len(self.source.train),
            validation_rows=len(self.source.validation),
            scored_rows=len(self.source.dev),
            row_tokens=self.row_tokens,
        )
        limits = self._limits(clock.left - CLOSING)
        plan = make_plan(self.size, self.costs, limits)
        seconds = time.monotonic() - began
        return Forecast(size=self.size, costs=self.costs, limits=limits, plan=plan, seconds=seconds)

    def _begin(self, forecast: Forecast) -> None:
        """Tokenize the first rows, read the validation rows, and work through the plan."""
        plan = forecast.plan
        self.layers = plan.layers
        self.data = self._with_objects(self.source.data(plan.stages[0].rows))
        if plan.layers:
            self.heads = work.stage_heads(self.data, self.checkpoint.encoder, self.request.head, plan.layers)
        values = {
            "time_limit": self.request.clock.seconds,
            "experiment": self.request.config.experiment.to_dict(),
            "data": asdict(forecast.size),
            "unit_costs": asdict(forecast.costs),
            "plan": [asdict(stage) for stage in plan.stages],
        }
        write_json(self.directory / "settings.json", values)
        self._add_history("plan", forecast.seconds, forecast.seconds, _describe(plan))
        self._work(plan)

    def _with_objects(self, data: ExperimentData) -> ExperimentData:
        request = self.request
        return replace(data, encoder=request.encoder, frozen_cache=request.frozen_cache, callbacks=request.callbacks)

    def _limits(self, seconds: float) -> Limits:
        request = self.request
        free = memory.free_memory()
        available = int(FREE_MEMORY * free)
        if request.memory_limit:
            held = memory.held_memory()
            available = min(request.memory_limit - held, free)
            if self.best.run is None and available < LEAST_MEMORY:
                raise BertVisionError(
                    f"A memory_limit of {request.memory_limit / 1e9:.2f} GB is too small: the process holds "
                    f"{held / 1e9:.2f} GB with the encoder loaded, and needs {LEAST_MEMORY / 1e9:.1f} GB more."
                )
        disk = request.disk_limit or memory.free_disk(request.root) // 2
        return Limits(seconds=seconds, memory=available, disk=disk)

    def _work(self, plan: Plan) -> None:
        """Carry out stages until the plan has no more, and plan again after each."""
        while plan.stages:
            stage = plan.stages[0]
            self.view.begin(stage, plan.stages[1:])
            began = time.monotonic()
            candidate, failed = self._carry_out(stage), ""
            seconds = time.monotonic() - began
            self.done.append(stage)
            if stage.kind is StageKind.SCORE:
                self._add_history(stage.describe(), stage.seconds, seconds, "finished", candidate)
                return
            plan = revise(plan, self.size, self.costs, self._limits(self.request.clock.left - CLOSING), self.done)
            self._add_history(stage.describe(), stage.seconds, seconds, failed or _describe(plan), candidate)

    # Stages

    def _carry_out(self, stage: Stage) -> Candidate | None:
        """Carry out one stage; return its best candidate."""
        clock = self.request.clock.part(stage.seconds)
        if stage.kind is StageKind.SCORE:
            return self._score(self.request.clock)
        self._tokenize(stage.rows)
        if stage.kind is StageKind.FINETUNE:
            return self._finetune(stage, clock)
        if not self.stages:
            self.stages = [work.open_stage(self.data, self.checkpoint, self.heads)]
        return self._fit_heads(stage, clock)

    def _tokenize(self, rows: int) -> None:
        """Tokenize the first `rows` training rows, unless they are."""
        if len(self.data.train.examples) < min(rows, len(self.source.train)):
            self.data = self.source.data(rows, self.data)

    def _fit_heads(self, stage: Stage, clock: Clock) -> Candidate | None:
        """Read hidden states, and fit and train heads on them."""
        current = self.stages[-1]
        resident = current.resident
        tokens, seconds = resident.tokens_read, resident.seconds
        convex = convex_seconds(stage.convex_rows, self.costs.features, self.costs.flops)
        training = stage.epochs * stage.rows * self.size.row_tokens / self.costs.head
        reading = clock.part(clock.left - convex - training - self.costs.writing)
        resident.read(self.data, stage.rows, reading, fewest=min(FEWEST_ROWS, stage.rows))
        tokens, seconds = resident.tokens_read - tokens, resident.seconds - seconds
        if seconds > MEASURABLE:
            self.costs = replace(self.costs, forward=tokens / seconds)
        epochs = stage.epochs or (0.0 if current.heads.convex else FEWEST_EPOCHS)
        models = work.fit_heads(
            self.data,
            current,
            convex_rows=min(stage.convex_rows, len(resident.states)),
            epochs=epochs,
            clock=clock.part(clock.left - 2 * self.costs.writing),
            started=self.learned,
            callbacks=[*self.request.callbacks, self.view.callback()],
        )
        for model in models:
            if model.output.name == str(current.heads.trained) and model.output.weights:
                self.learned[model.output.name] = model.output.weights
        return self._offer(models)

    def _finetune(self, stage: Stage, clock: Clock) -> Candidate | None:
        """Fine-tune the encoder until just enough time is left for scoring and saving it."""
        closing = self._validation_seconds() + 2 * self.costs.saving + 2 * self.costs.writing
        capped = stage.epochs >= MAX_EPOCHS - 0.01
        start = self.stages[-1].checkpoint if len(self.stages) > 1 and self.continues else None
        checkpoint = work.tune_encoder(
            self.data.change(seed=self.data.experiment.seed + stage.round - 1),
            self.directory,
            epochs=stage.epochs if capped else SPARE_EPOCHS * stage.epochs,
            clock=clock.part(clock.left - closing),
            frozen=self.stages[0],
            start=start,
            rate_scale=FURTHER_RATE if start else 1.0,
            callbacks=[*self.request.callbacks, self.view.callback()],
        )
        checkpoint = self._renamed(checkpoint)
        record = checkpoint.record
        if record.seconds > MEASURABLE and start is None:
            tokens = record.fraction * self.data.train.features.lengths.sum()
            self.costs = replace(self.costs, training=tokens / record.seconds)
        self.stages[0].resident.states.clear()  # heads go on with the states of the fine-tuned encoder
        self.stages = [self.stages[0], work.open_stage(self.data, checkpoint, self.heads)]
        return self._offer(work.tuned_models(self.data, self.stages[-1]))

    def _renamed(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return a checkpoint whose directory is not that of another one of this run."""
        fraction = checkpoint.fraction
        while (self.directory / f"{fraction:g}").exists():
            fraction = round(fraction + 0.0001, 4)
        record = replace(checkpoint.record, fraction=fraction)
        return replace(checkpoint, fraction=fraction, record=record, directory=self.directory / f"{fraction:g}")

    def _validation_seconds(self) -> float:
        return len(self.data.validation.features) * self.size.row_tokens / self.costs.forward

    def _offer(self, models: Sequence[FittedModel]) -> Candidate | None:
        """Let new models, and ensembles with those on the same encoder, compete with the best model so far."""
        current = self.stages[-1]
        names = {model.output.name for model in models}
        current.models = [model for model in current.models if model.output.name not in names] + list(models)
        if not current.models:
            return None
        began = time.monotonic()
        candidate = self.best.offer(self.data, current.models)
        if len(models) == 1:
            self.costs = replace(
                self.costs, writing=max(self.costs.writing, time.monotonic() - began - self.costs.saving)
            )
        self.view.best_score = self.best.score[0] if self.best.score else None
        return candidate

    def _score(self, clock: Clock) -> Candidate | None:
        """Predict the dev rows with the best model, part by part until the clock ends, and save it with its scores."""
        candidate = self.best.candidate
        if candidate is None or not self.source.dev:
            return candidate
        split = tokenize(self.request.config, self.source.dev)
        states = SplitInOrder(candidate.checkpoint, self.data, split, candidate.models[0].view)
        limited = UntilEnd(states, clock.part(clock.left - 3 * self.costs.writing - CLOSING))
        modules = {str(number): model.module for number, model in enumerate(candidate.models)}
        predictions = self.data.predict(modules, limited, split, "score")
        scored = _complete_examples(split, limited.rows_read)
        if len(scored) < len(self.source.dev):
            logger.warning(f"{len(scored):,} of {len(self.source.dev):,} dev rows were scored within the time limit.")
            split = tokenize(self.request.config, scored)
        models = tuple(
            with_dev(model, chosen_rows(predictions[str(number)], split.features.ids), "-scored")
            for number, model in enumerate(candidate.models)
        )
        self.best.save(replace(self.data, dev=split), replace(candidate, models=models))
        return self.best.candidate

    # Results

    def _add_history(
        self, stage: str, predicted: float, seconds: float, decided: str, candidate: Candidate | None = None
    ) -> None:
        entry = HistoryEntry(
            seconds=self.request.clock.elapsed,
            stage=stage,
            validation_score=candidate.score[0] if candidate else None,
            best_score=self.best.score[0] if self.best.score else None,
            predicted_seconds=predicted,
            stage_seconds=seconds,
            decided=decided,
        )
        self.history.append(entry)
        self.view.end(entry)
        write_json(self.directory / HISTORY_FILE, [item.to_dict() for item in self.history])

    def _finish(self) -> ExperimentResult:
        assert self.best.run is not None
        result = ExperimentResult(self.best.runs, self.best.run, self.directory / "results.json")
        values = {
            "experiment": self.request.config.experiment.to_dict(),
            "source": self.request.splits.source,
            "rows": result.to_rows(),
            "history": [entry.to_dict() for entry in self.history],
        }
        write_json(result.file, values)
        self.view.finish(self.request.clock, self.best.score)
        return result


def request_of(
    experiment: Experiment, root: Path, clock: Clock, *, memory_limit: int = 0, disk_limit: int = 0
) -> RunRequest:
    """Return the run of an experiment within the time of a clock. Its rows are loaded, from its task or its files."""
    if "," in experiment.task or experiment.checkpoints_given:
        raise BertVisionError("A time limit is for one task and one encoder; give one task, and no {fraction}.")
    task, data = find_task(experiment), experiment.data
    config = resolve(experiment, task, load_encoder_info(experiment.encoder))
    splits = load_splits(config)
    train = task.sample(splits.train, data.limit, data.split_seed)
    dev = task.sample(splits.dev, data.limit_dev, data.split_seed)
    return RunRequest(
        config=config,
        splits=replace(splits, train=train, dev=dev),
        root=root,
        clock=clock,
        memory_limit=memory_limit,
        disk_limit=disk_limit,
        head=HeadConfig.parse(experiment.heads[0], task.example_kind) if experiment.heads else None,
    )


def _complete_examples(split: Split, rows: set[int]) -> list[Example]:
    """Return the examples of a split all of whose rows were predicted."""
    lacking = {id for row, id in enumerate(split.features.example_ids) if row not in rows}
    return [example for example in split.examples if example.id not in lacking]


def chosen_rows(predictions: Predictions, ids: Sequence[str]) -> Predictions:
    """Return the predictions of these rows."""
    positions = {id: row for row, id in enumerate(predictions.ids)}
    rows = [predictions.row(positions[id]) for id in ids]
    if predictions.offsets is None:
        return Predictions(ids=list(ids), logits=np.stack(rows))
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    return Predictions(ids=list(ids), logits=np.concatenate(rows), offsets=offsets)


def _describe(plan: Plan) -> str:
    """Return the stages to come, for people."""
    steps = "; ".join(f"{stage.describe()} ({stage.seconds:.1f} s)" for stage in plan.stages)
    return "; ".join([f"next: {steps}", *plan.notes])
