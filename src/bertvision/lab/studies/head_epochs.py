"""The score of a head after each training epoch."""

from dataclasses import replace
from typing import Any

from bertvision.convex import fit_convex, is_convex
from bertvision.files import file_lock
from bertvision.heads import required_view, training_dtype
from bertvision.lab.studies.context import StudyContext, score_row
from bertvision.lab.studies.result import Figure, StudyTable
from bertvision.pipeline import cache_keys
from bertvision.pipeline.evaluation import evaluate
from bertvision.pipeline.head_training import new_head
from bertvision.pipeline.outputs import ModelOutput
from bertvision.pipeline.states import held_out_states, states
from bertvision.records import TrainingSeconds, TrainingSummary
from bertvision.runs import Run, is_finished
from bertvision.training import Checkpointer, FitOptions, FractionRecord, fit


def head_epochs(context: StudyContext) -> StudyTable:
    """The score of the main head after each epoch, compared with BERT. The study selects nothing."""
    rows: list[dict[str, Any]] = []
    findings = []
    for fraction in context.head_fractions:
        bert = score_row(context.task, [context.bert_run(seed, fraction) for seed in context.seeds])
        runs_by_seed = [_runs_by_epoch(context, seed, fraction) for seed in context.seeds]
        head_rows = []
        for epoch, runs in enumerate(zip(*runs_by_seed, strict=True), 1):
            common = {"fraction": fraction, "epoch": epoch}
            head_rows.append({"model": str(context.main_head)} | common | score_row(context.task, runs))
            rows += [head_rows[-1], {"model": "BERT"} | common | bert]
        best = max(head_rows, key=lambda row: row["validation"])
        findings.append(
            f"After {fraction:g} epochs of fine-tuning, the head scores {head_rows[0]['score']:.1f} after its first "
            f"epoch and {head_rows[-1]['score']:.1f} after epoch {head_rows[-1]['epoch']}. Epoch {best['epoch']} has "
            f"the best validation score and scores {best['score']:.1f}."
        )
    for row in rows:
        row["model, states"] = f"{row['model']}, {row['fraction']:g}"
    columns = ["model", "fraction", "epoch", "score", "low", "high", "validation", "seconds"]
    title = "Score by epochs of the head"
    figure = Figure(title=title, kind="line", x="epoch", y="score", color="model, states", low="low", high="high")
    return StudyTable(columns=columns, rows=rows, figures=[figure], findings=findings)


def _runs_by_epoch(context: StudyContext, seed: int, fraction: float) -> list[Run]:
    """Train the main head without early stopping and return one run for each epoch."""
    data, checkpoint = context.data(seed), context.checkpoint(seed, fraction)
    config = context.main_head
    shape = data.shape(checkpoint.encoder, [config])
    view = required_view([config], shape)
    model = new_head(data, config, shape, view)
    epochs = 1 if is_convex(model) else context.options.epochs  # a head that is fitted to its optimum has no epochs
    training = replace(data.head_training, epochs=float(epochs), patience=0)
    names, key = cache_keys.epoch_runs(data, checkpoint, config, training)
    directories = [checkpoint.directory / name for name in names]
    if all(map(is_finished, directories)):
        return [Run(directory) for directory in directories]
    held_out = {name: held_out_states(data, checkpoint, name, view) for name in data.held_out}
    train = states(data, checkpoint, "train", view, data.shuffled(training), training_dtype([model]))

    def save_run(record: FractionRecord) -> None:
        epoch = round(record.fraction)
        output = ModelOutput(
            name=str(config),
            kind="epoch",
            directory=names[epoch - 1],
            predictions=data.predict_held_out({"head": model}, held_out.__getitem__, f"epoch {epoch}")["head"],
            summary=TrainingSummary(
                parameters=sum(p.numel() for p in model.parameters()),
                seconds=TrainingSeconds(finetune=checkpoint.seconds, head=record.seconds),
                epoch=epoch,
            ),
            shape=shape,
            weights={name: value.cpu().clone() for name, value in model.state_dict().items()},
        )
        evaluate(data, checkpoint, output)

    resume = checkpoint.directory / f"resume-epochs-{key}.safetensors"
    unfinished = [float(epoch) for epoch, directory in enumerate(directories, 1) if not is_finished(directory)]
    options = FitOptions(
        seed=seed, fractions=unfinished, on_fraction=save_run, label=f"train {config} for {epochs} epochs"
    )
    with file_lock(resume, wait=False):
        if is_convex(model):
            fitted = fit_convex(model, train, data.task.loss, training, held_out["validation"])
            save_run(
                FractionRecord(fraction=1.0, training_loss=0.0, seconds=fitted.seconds, steps=0, saving_seconds=0.0)
            )
        else:
            fit({"head": model}, train, data.task.loss, {"head": training}, options, Checkpointer(resume, key))
    resume.unlink(missing_ok=True)
    return [Run(directory) for directory in directories]
