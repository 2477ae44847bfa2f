"""A head's score after each of its epochs."""

from dataclasses import replace
from typing import Any

from bertvision.files import locked, value_hash
from bertvision.heads import learns_in, view_of
from bertvision.pipeline.prepared import fingerprint
from bertvision.pipeline.probing import new_head
from bertvision.pipeline.scoring import finish
from bertvision.pipeline.states import states
from bertvision.runs import Run, is_finished, slug
from bertvision.studies.lab import Lab, describe
from bertvision.studies.result import Figure
from bertvision.training import fit


def head_epochs(lab: Lab) -> dict[str, Any]:
    """A head's score after each epoch, with seconds and BERT's line. Nothing is chosen by it."""
    rows: list[dict[str, Any]] = []
    for fraction in lab.read_at:
        bert = describe(lab.task, [lab.bert(seed, fraction) for seed in lab.seeds])
        found = [_by_epoch(lab, seed, fraction) for seed in lab.seeds]
        for epoch in range(1, lab.options.epochs + 1):
            runs = [each[epoch - 1] for each in found]
            rows.append({"model": lab.default, "fraction": fraction, "epoch": epoch} | describe(lab.task, runs))
            rows.append({"model": "BERT", "fraction": fraction, "epoch": epoch} | bert)
    words = []
    for fraction in lab.read_at:
        here = [row for row in rows if row["fraction"] == fraction and row["model"] == lab.default]
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


def _by_epoch(lab: Lab, seed: int, fraction: float) -> list[Run]:
    """Train once without stopping early; keep a run of each epoch."""
    prepared, point = lab.prepared(seed), lab.point(seed, fraction)
    spec, epochs = lab.default, lab.options.epochs
    optim = replace(prepared.heads, epochs=float(epochs), patience=0)
    key = value_hash([spec, vars(optim), seed, point.weights, fingerprint(prepared.dev)])
    places = [point.directory / f"{slug(spec)}-epoch{epoch}-{key}" for epoch in range(1, epochs + 1)]
    if all(map(is_finished, places)):
        return [Run(place) for place in places]
    shape = prepared.shape(point.backbone, [spec])
    view = view_of([spec], shape)
    model = new_head(prepared, spec, shape, view)
    held = {
        name: states(prepared, point, name, view, prepared.ordered(split), lab.notify)
        for name, split in prepared.held_out.items()
    }
    train = states(prepared, point, "train", view, prepared.shuffled(optim), lab.notify, learns_in([model]))
    parameters = sum(p.numel() for p in model.parameters())

    def keep(epoch: float, record: dict[str, float]) -> None:
        place = places[round(epoch) - 1]
        found = {
            name: prepared.predict({"head": model}, held[name], split, f"epoch {epoch:g} on {name}")["head"]
            for name, split in prepared.held_out.items()
        }
        weights = {key: value.cpu().clone() for key, value in model.state_dict().items()}
        head = record["seconds"]
        seconds = {"finetune": point.seconds, "head": head, "total": point.seconds + head}
        extra = {"parameters": parameters, "seconds": seconds, "epoch": round(epoch)}
        finish(prepared, point, place, "epoch", spec, found, extra, weights=weights, shape=shape)

    resume = point.directory / f"resume-epochs-{key}.safetensors"
    with locked(resume, wait=False):
        fit(
            {"head": model},
            train,
            prepared.task.loss,
            {"head": optim},
            seed=seed,
            pause_at=[float(epoch) for epoch, place in enumerate(places, 1) if not is_finished(place)],
            on_pause=keep,
            resume=resume,
            fingerprint=key,
            label=f"train {spec} for {epochs} epochs",
            notify=lab.notify,
        )
    resume.unlink(missing_ok=True)
    return [Run(place) for place in places]
