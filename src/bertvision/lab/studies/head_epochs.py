"""A head's score after each of its epochs."""

from dataclasses import replace
from typing import Any

from bertvision.files import file_lock, value_hash
from bertvision.heads import required_view, training_dtype
from bertvision.lab.pipeline.data import fingerprint
from bertvision.lab.pipeline.evaluation import finish
from bertvision.lab.pipeline.head_training import new_head
from bertvision.lab.pipeline.states import states
from bertvision.lab.studies.context import StudyContext, describe
from bertvision.lab.studies.result import Figure
from bertvision.records import Seconds
from bertvision.runs import Run, is_finished, slug
from bertvision.training import Checkpointer, FitOptions, FractionRecord, fit


def head_epochs(context: StudyContext) -> dict[str, Any]:
    """A head's score after each epoch, with seconds and BERT's line. Nothing is chosen by it."""
    rows: list[dict[str, Any]] = []
    for fraction in context.head_fractions:
        bert = describe(context.task, [context.bert(seed, fraction) for seed in context.seeds])
        found = [_by_epoch(context, seed, fraction) for seed in context.seeds]
        for epoch in range(1, context.options.epochs + 1):
            runs = [each[epoch - 1] for each in found]
            rows.append({"model": context.default, "fraction": fraction, "epoch": epoch} | describe(context.task, runs))
            rows.append({"model": "BERT", "fraction": fraction, "epoch": epoch} | bert)
    words = []
    for fraction in context.head_fractions:
        here = [row for row in rows if row["fraction"] == fraction and row["model"] == context.default]
        best = max(here, key=lambda row: row["validation"])
        words.append(
            f"After {fraction:g} epochs of fine-tuning the head scores {here[0]['score']:.1f} after one epoch of its "
            f"own and {here[-1]['score']:.1f} after {here[-1]['epoch']}; validation prefers epoch {best['epoch']}: "
            f"{best['score']:.1f}."
        )
    for row in rows:
        row["model, states"] = f"{row['model']}, {row['fraction']:g}"
    columns = ["model", "fraction", "epoch", "score", "low", "high", "validation", "seconds"]
    title = "Score by epochs of the head"
    figure = Figure(title=title, kind="line", x="epoch", y="score", color="model, states", low="low", high="high")
    return {"columns": columns, "rows": rows, "figures": [figure], "words": words}


def _by_epoch(context: StudyContext, seed: int, fraction: float) -> list[Run]:
    """Train once without stopping early; keep a run of each epoch."""
    data, checkpoint = context.data(seed), context.checkpoint(seed, fraction)
    spec, config, epochs = context.default, context.default_config, context.options.epochs
    optim = replace(data.heads, epochs=float(epochs), patience=0)
    key = value_hash([spec, vars(optim), seed, checkpoint.encoder_hash, fingerprint(data.dev)])
    places = [checkpoint.directory / f"{slug(spec)}-epoch{epoch}-{key}" for epoch in range(1, epochs + 1)]
    if all(map(is_finished, places)):
        return [Run(place) for place in places]
    shape = data.shape(checkpoint.encoder, [config])
    view = required_view([config], shape)
    model = new_head(data, config, shape, view)
    held = {name: states(data, checkpoint, name, view, data.ordered(split)) for name, split in data.held_out.items()}
    train = states(data, checkpoint, "train", view, data.shuffled(optim), training_dtype([model]))
    parameters = sum(p.numel() for p in model.parameters())

    def keep(record: FractionRecord) -> None:
        epoch = record.fraction
        place = places[round(epoch) - 1]
        found = {
            name: data.predict({"head": model}, held[name], split, f"epoch {epoch:g} on {name}")["head"]
            for name, split in data.held_out.items()
        }
        weights = {key: value.cpu().clone() for key, value in model.state_dict().items()}
        seconds = Seconds(finetune=checkpoint.seconds, head=record.seconds)
        extra = {"parameters": parameters, "seconds": seconds, "epoch": round(epoch)}
        finish(data, checkpoint, place, "epoch", spec, found, extra, weights=weights, shape=shape)

    resume = checkpoint.directory / f"resume-epochs-{key}.safetensors"
    with file_lock(resume, wait=False):
        fit(
            {"head": model},
            train,
            data.task.loss,
            {"head": optim},
            FitOptions(
                seed=seed,
                fractions=[float(epoch) for epoch, place in enumerate(places, 1) if not is_finished(place)],
                on_fraction=keep,
                label=f"train {spec} for {epochs} epochs",
            ),
            Checkpointer(resume, key),
        )
    resume.unlink(missing_ok=True)
    return [Run(place) for place in places]
