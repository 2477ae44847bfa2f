"""Comparisons of models: fine-tuning curve, heads, ensembles, longer fine-tuning, other checkpoints, fewer labels."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from bertvision.errors import BertVisionError
from bertvision.heads import BERT_HEAD, HEADS, HeadConfig, required_view
from bertvision.lab.studies.context import StudyContext, difference_columns, score_row
from bertvision.lab.studies.result import Figure, StudyTable
from bertvision.pipeline import cache_keys
from bertvision.pipeline.evaluation import evaluate
from bertvision.pipeline.head_training import new_head
from bertvision.pipeline.outputs import ModelOutput
from bertvision.pipeline.states import held_out_states
from bertvision.records import TrainingSeconds, TrainingSummary
from bertvision.runs import Run, is_finished

BERT, LAST, ONLY = "BERT", "control: last, retrained", "control: last layer only"
SCORE = ["score", "low", "high"]
Row = dict[str, Any]


def curve(context: StudyContext) -> StudyTable:
    """Score, training loss and seconds of BERT by epochs of fine-tuning, and the scores of heads."""
    rows: list[Row] = []
    for fraction in context.fractions:
        bert = _bert_runs(context, fraction)
        losses = [run.metrics.training_loss or 0.0 for run in bert]
        row = {"model": BERT, "fraction": fraction, "training loss": sum(losses) / len(losses)}
        rows.append(row | score_row(context.task, bert))
        if fraction in context.head_fractions:
            heads = context.over_seeds(lambda seed, at=fraction: context.head_runs(seed, at, context.heads))
            rows += [
                {"model": name, "fraction": fraction} | score_row(context.task, runs) for name, runs in heads.items()
            ]
    bert_rows = [row for row in rows if row["model"] == BERT]
    best = max(bert_rows, key=lambda row: row["validation"])
    findings = [
        f"BERT has its best validation score after {best['fraction']:g} epochs; its score is {best['score']:.1f}."
    ]
    for row in rows:
        if row["model"] == str(context.main_head):
            reached = [bert_row["fraction"] for bert_row in bert_rows if bert_row["score"] >= row["score"]]
            bert_needs = f"BERT needs {reached[0]:g} epochs for that" if reached else "BERT stays below that"
            findings.append(
                f"{context.main_head} scores {row['score']:.1f} after {row['fraction']:g} epochs of fine-tuning; "
                f"{bert_needs}."
            )
    title = "Score by epochs of fine-tuning"
    score = Figure(title=title, kind="line", x="fraction", y="score", color="model", low="low", high="high")
    loss = Figure(title="Training loss of BERT", kind="line", x="fraction", y="training loss", where={"model": BERT})
    seconds = Figure(title="Score by seconds", kind="scatter", x="seconds", y="score", color="model")
    columns = ["model", "fraction", *SCORE, "validation", "training loss", "seconds"]
    return StudyTable(columns=columns, rows=rows, figures=[score, loss, seconds], findings=findings)


def _bert_runs(context: StudyContext, fraction: float) -> list[Run]:
    return context.over_seeds(lambda seed: {BERT: context.bert_run(seed, fraction)})[BERT]


def _heads_and_controls(context: StudyContext, fraction: float, heads: Sequence[HeadConfig]) -> dict[str, list[Run]]:
    """Return BERT, both controls and heads at a fraction, over seeds."""

    def runs_of_seed(seed: int) -> dict[str, Run]:
        trained = context.head_runs(seed, fraction, list(dict.fromkeys([*heads, *context.controls])))
        names = dict(zip(map(str, context.controls), (LAST, ONLY), strict=True))
        return {BERT: context.bert_run(seed, fraction)} | {names.get(name, name): run for name, run in trained.items()}

    return context.over_seeds(runs_of_seed)


def _compared_rows(context: StudyContext, fraction: float, models: Mapping[str, list[Run]]) -> list[Row]:
    """Return a row for each model, with its differences to BERT and to both controls."""
    baselines = {"BERT": BERT, "last": LAST, "last layer": ONLY}
    baselines = {title: name for title, name in baselines.items() if name in models}
    differences = difference_columns(context.task, models, baselines)
    bert_parameters = models[BERT][0].metrics.parameters
    rows = []
    for name, runs in models.items():
        row = {"model": name, "fraction": fraction} | score_row(context.task, runs) | differences[name]
        rows.append(row | {"% of BERT": 100 * row["parameters"] / bert_parameters})
    return rows


def zoo(context: StudyContext) -> StudyTable:
    """All heads, or those named in the experiment, compared with BERT and the controls."""
    heads = context.heads
    if not context.experiment.heads:
        heads = list(dict.fromkeys([*(HeadConfig(name) for name in HEADS if name != BERT_HEAD), context.main_head]))
    rows, findings, figures = [], [], []
    for fraction in context.head_fractions:
        compared = _compared_rows(context, fraction, _heads_and_controls(context, fraction, heads))
        rows += compared
        bert = next(row for row in compared if row["model"] == BERT)
        head_rows = [row for row in compared if row["model"] not in (BERT, LAST, ONLY)]
        best = max(head_rows, key=lambda row: row["validation"])
        better = sum(row["over BERT"] > 0 and row["p, BERT"] < 0.05 for row in head_rows)
        findings.append(
            f"After {fraction:g} epochs, {better} of {len(head_rows)} heads are significantly better than BERT "
            f"({bert['score']:.1f}; p < .05). {best['model']} has the best validation score and scores "
            f"{best['score']:.1f}."
        )
        title, where = f"Heads after {fraction:g} epochs", {"fraction": fraction}
        figures.append(Figure(title=title, kind="dot", x="score", y="model", low="low", high="high", where=where))
    columns = ["model", "fraction", "parameters", "% of BERT", *SCORE, "validation", "over BERT", "p, BERT"]
    columns += ["over last", "p, last", "over last layer", "p, last layer", "seconds"]
    return StudyTable(columns=columns, rows=rows, figures=figures, findings=findings)


def longer(context: StudyContext) -> StudyTable:
    """Heads on the hidden states of an encoder fine-tuned for two or more epochs."""
    late = [fraction for fraction in context.fractions if fraction >= 2] or [max(context.fractions)]
    rows = []
    for fraction in late:
        models = _heads_and_controls(context, fraction, [context.main_head])
        _add_ensembles(context, models, [(BERT, str(context.main_head))])
        rows += _compared_rows(context, fraction, models)
    findings = [
        f"After {row['fraction']:g} epochs, {context.main_head} differs from BERT by {row['over BERT']:+.1f} points "
        f"(p = {row['p, BERT']:.3f})."
        for row in rows
        if row["model"] == str(context.main_head)
    ]
    title = "Score after longer fine-tuning"
    figure = Figure(title=title, kind="dot", x="score", y="model", color="fraction", low="low", high="high")
    columns = ["model", "fraction", *SCORE, "validation", "over BERT", "p, BERT", "over last", "p, last"]
    return StudyTable(columns=columns, rows=rows, figures=[figure], findings=findings)


def _add_ensembles(context: StudyContext, models: dict[str, list[Run]], members: Sequence[tuple[str, str]]) -> None:
    """Add the ensembles of pairs of models to `models`, one for each method and seed."""
    for method in context.ensemble_methods():
        for first, second in members:
            pairs = zip(context.seeds, models[first], models[second], strict=True)
            models[f"{first} + {second} ({method})"] = [
                context.ensemble_run(seed, [one, two], method) for seed, one, two in pairs
            ]


def ensemble(context: StudyContext) -> StudyTable:
    """BERT, the main head, and ensembles of the head with BERT and with another head."""
    rows, findings = [], []
    main = context.main_head
    other = next((config for config in context.heads if config != main), HeadConfig("learned"))
    for fraction in context.head_fractions:
        models = context.over_seeds(
            lambda seed, at=fraction: {BERT: context.bert_run(seed, at)} | context.head_runs(seed, at, [main, other])
        )
        _add_ensembles(context, models, [(BERT, str(main)), (str(other), str(main))])
        differences = difference_columns(context.task, models, {"BERT": BERT, "head": str(main)})
        rows += [
            {"model": name, "fraction": fraction} | score_row(context.task, runs) | differences[name]
            for name, runs in models.items()
        ]
        ensembles = [row for row in rows if row["fraction"] == fraction and " + " in row["model"]]
        best = max(ensembles, key=lambda row: row["validation"])
        findings.append(
            f"After {fraction:g} epochs, {best['model']} has the best validation score of the ensembles. It differs "
            f"from the head alone by {best['over head']:+.1f} points (p = {best['p, head']:.3f})."
        )
    figure = Figure(title="Ensembles", kind="dot", x="score", y="model", color="fraction", low="low", high="high")
    columns = ["model", "fraction", *SCORE, "validation", "over BERT", "p, BERT", "over head", "p, head"]
    return StudyTable(columns=columns, rows=rows, figures=[figure], findings=findings)


def cross_checkpoint(context: StudyContext) -> StudyTable:
    """Heads trained at an early checkpoint, evaluated on the hidden states of later ones."""
    early = context.head_fractions[0]
    later = [fraction for fraction in context.fractions if fraction > early]
    if not later:
        raise BertVisionError(
            f"cross-checkpoint needs a fraction after {early:g}, where the heads are trained, but the experiment has "
            f"only {context.fractions}. Add a later one, e.g. --fractions {early:g},{early + 1:g}."
        )
    rows = []
    for fraction in [early, *later]:

        def runs_of_seed(seed: int, at: float = fraction) -> Mapping[str, Run]:
            trained = context.head_runs(seed, early, context.heads)
            return trained if at == early else context.evaluate_heads_at(seed, trained, at)

        heads = context.over_seeds(runs_of_seed)
        models = {BERT: _bert_runs(context, fraction)} | heads
        differences = difference_columns(context.task, models, {"BERT": BERT})
        for name, runs in models.items():
            row = {"model": name, "trained at": "" if name == BERT else f"{early:g}", "fraction": fraction}
            rows.append(row | score_row(context.task, runs) | differences[name])
    findings = [
        f"{context.main_head}, trained on hidden states after {early:g} epochs, scores {row['score']:.1f} on those "
        f"after {row['fraction']:g} epochs ({row['over BERT']:+.1f} points compared with BERT)."
        for row in rows
        if row["model"] == str(context.main_head)
    ]
    title = f"Heads trained after {early:g} epochs, by checkpoint"
    figure = Figure(title=title, kind="line", x="fraction", y="score", color="model", low="low", high="high")
    columns = ["model", "trained at", "fraction", *SCORE, "over BERT", "p, BERT"]
    return StudyTable(columns=columns, rows=rows, figures=[figure], findings=findings)


def less_data(context: StudyContext) -> StudyTable:
    """The main head trained on a share of the labels, evaluated at its own checkpoint and at the last one."""
    fractions = list(dict.fromkeys([context.head_fractions[0], max(context.fractions)]))
    shares = sorted(context.options.shares)
    rows = [
        {"model": name, "labels": share, "fraction": fraction} | score_row(context.task, runs)
        for share in shares
        for fraction in fractions
        for name, runs in _trained_on_share(context, share, fraction).items()
    ]
    findings = []
    for fraction in fractions:
        bert = score_row(context.task, _bert_runs(context, fraction))
        above = [row["labels"] for row in rows if row["fraction"] == fraction and row["score"] > bert["score"]]
        with_labels = f"from {100 * min(above):g} % of the labels on" if above else "with no share of the labels"
        findings.append(
            f"On hidden states after {fraction:g} epochs, the head scores higher than BERT ({bert['score']:.1f}) "
            f"{with_labels}."
        )
        # Drawn as a horizontal line: BERT is always trained on all labels.
        rows += [{"model": BERT, "labels": share, "fraction": fraction} | bert for share in shares]
    for row in rows:
        row["model, states"] = f"{row['model']}, {row['fraction']:g}"
    title, series = "Score by share of the labels", "model, states"
    figure = Figure(title=title, kind="line", x="labels", y="score", color=series, low="low", high="high")
    columns = ["model", "labels", "fraction", *SCORE]
    return StudyTable(columns=columns, rows=rows, figures=[figure], findings=findings)


def _trained_on_share(context: StudyContext, share: float, fraction: float) -> dict[str, list[Run]]:
    """Return the main head, trained on a share of the labels at the first fraction and evaluated at `fraction`."""
    early = context.head_fractions[0]

    def runs_of_seed(seed: int) -> Mapping[str, Run]:
        if share == 0:
            return {str(context.main_head): _untrained_run(context, seed, fraction)}
        # Stored, because every share reads the same hidden states.
        trained = context.head_runs(seed, early, [context.main_head], label_fraction=share, states="store")
        return trained if fraction == early else context.evaluate_heads_at(seed, trained, fraction)

    return context.over_seeds(runs_of_seed)


def _untrained_run(context: StudyContext, seed: int, fraction: float) -> Run:
    """Return the run of the main head with its initial weights."""
    data, checkpoint, config = context.data(seed), context.checkpoint(seed, fraction), context.main_head
    directory = checkpoint.directory / cache_keys.untrained_run(data, config)
    if is_finished(directory):
        return Run(directory)
    shape = data.shape(checkpoint.encoder, [config])
    view = required_view([config], shape)
    model = new_head(data, config, shape, view)
    open_batches = partial(held_out_states, data, checkpoint, view=view)
    output = ModelOutput(
        name=str(config),
        kind="evaluated",
        directory=directory.name,
        predictions=data.predict_held_out({"head": model}, open_batches, "untrained head")["head"],
        summary=TrainingSummary(
            parameters=sum(p.numel() for p in model.parameters()),
            seconds=TrainingSeconds(finetune=checkpoint.seconds, head=0.0),
        ),
        shape=shape,
        weights=model.state_dict(),
    )
    return evaluate(data, checkpoint, output)
