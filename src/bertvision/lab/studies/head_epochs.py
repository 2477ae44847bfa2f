"""The score of a head after each training epoch."""

from dataclasses import replace
from typing import Any

from bertvision.files import file_lock, value_hash
from bertvision.heads import required_view, training_dtype
from bertvision.lab.studies.context import StudyContext, score_row
from bertvision.lab.studies.result import Figure, StudyTable
from bertvision.pipeline.data import fingerprint
from bertvision.pipeline.evaluation import finish
from bertvision.pipeline.head_training import new_head
from bertvision.pipeline.states import states
from bertvision.records import TrainingSeconds
from bertvision.runs import Run, is_finished, slug
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
            head_rows.append({"model": context.main_head} | common | score_row(context.task, runs))
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
    spec, config, epochs = context.main_head, context.main_config, context.options.epochs
    optim = replace(data.heads, epochs=float(epochs), patience=0)
    key = value_hash([spec, vars(optim), seed, checkpoint.encoder_hash, fingerprint(data.dev)])
    directories = [checkpoint.directory / f"{slug(spec)}-epoch{epoch}-{key}" for epoch in range(1, epochs + 1)]
    if all(map(is_finished, directories)):
        return [Run(directory) for directory in directories]
    shape = data.shape(checkpoint.encoder, [config])
    view = required_view([config], shape)
    model = new_head(data, config, shape, view)
    held_out = {
        name: states(data, checkpoint, name, view, data.ordered(split)) for name, split in data.held_out.items()
    }
    train = states(data, checkpoint, "train", view, data.shuffled(optim), training_dtype([model]))

    def save_run(record: FractionRecord) -> None:
        epoch = record.fraction
        predictions = {
            name: data.predict({"head": model}, held_out[name], split, f"epoch {epoch:g} on {name}")["head"]
            for name, split in data.held_out.items()
        }
        weights = {name: value.cpu().clone() for name, value in model.state_dict().items()}
        seconds = TrainingSeconds(finetune=checkpoint.seconds, head=record.seconds)
        parameters = sum(p.numel() for p in model.parameters())
        extra = {"parameters": parameters, "seconds": seconds, "epoch": round(epoch)}
        directory = directories[round(epoch) - 1]
        finish(data, checkpoint, directory, "epoch", spec, predictions, extra, weights=weights, shape=shape)

    resume = checkpoint.directory / f"resume-epochs-{key}.safetensors"
    unfinished = [float(epoch) for epoch, directory in enumerate(directories, 1) if not is_finished(directory)]
    with file_lock(resume, wait=False):
        fit(
            {"head": model},
            train,
            data.task.loss,
            {"head": optim},
            FitOptions(
                seed=seed, fractions=unfinished, on_fraction=save_run, label=f"train {spec} for {epochs} epochs"
            ),
            Checkpointer(resume, key),
        )
    resume.unlink(missing_ok=True)
    return [Run(directory) for directory in directories]
