"""Which model is better: the curve, the zoo, ensembles, longer fine-tuning, other checkpoints, fewer labels."""

from collections.abc import Mapping, Sequence
from typing import Any

from bertvision.errors import BertVisionError
from bertvision.heads import HEADS, view_of
from bertvision.pipeline.probing import new_head
from bertvision.pipeline.scoring import finish
from bertvision.pipeline.states import states
from bertvision.runs import Run, is_finished, slug
from bertvision.studies.lab import Lab, against, describe
from bertvision.studies.result import Figure

BERT, LAST, ONLY = "BERT", "control: last, retrained", "control: last layer only"
SCORE = ["score", "low", "high"]
Found = dict[str, Any]


def curve(lab: Lab) -> Found:
    """BERT by fraction: score, training loss, seconds; heads at the fractions read."""
    rows: list[dict[str, Any]] = []
    for fraction in lab.fractions:
        found = lab.over_seeds(lambda seed, at=fraction: {BERT: lab.bert(seed, at)})
        losses = [run.metrics["training_loss"] for run in found[BERT]]
        rows.append({"model": BERT, "fraction": fraction, "training loss": sum(losses) / len(losses)})
        rows[-1] |= describe(lab.task, found[BERT])
        if fraction in lab.read_at:
            heads = lab.over_seeds(lambda seed, at=fraction: lab.trained(seed, at, lab.heads))
            rows += [{"model": name, "fraction": fraction} | describe(lab.task, runs) for name, runs in heads.items()]
    best = max((row for row in rows if row["model"] == BERT), key=lambda row: row["validation"])
    words = [f"Validation prefers BERT after {best['fraction']:g} epochs: {best['score']:.1f}."]
    for row in rows:
        if row["model"] == lab.default:
            longer = [r for r in rows if r["model"] == BERT and r["score"] >= row["score"]]
            reach = f"BERT reaches that after {longer[0]['fraction']:g}" if longer else "BERT does not reach that here"
            words.append(f"{lab.default} after {row['fraction']:g} epochs: {row['score']:.1f}; {reach}.")
    figure = Figure(
        title="Score by epochs of fine-tuning",
        kind="line",
        x="fraction",
        y="score",
        color="model",
        low="low",
        high="high",
    )
    loss = Figure(title="Training loss of BERT", kind="line", x="fraction", y="training loss", where={"model": BERT})
    seconds = Figure(title="Score by seconds", kind="points", x="seconds", y="score", color="model")
    columns = ["model", "fraction", *SCORE, "validation", "training loss", "seconds"]
    return {"columns": columns, "rows": rows, "figures": [figure, loss, seconds], "words": words}


def _standing(lab: Lab, fraction: float, specs: Sequence[str]) -> dict[str, list[Run]]:
    """BERT, both controls and heads at a fraction, over seeds."""

    def find(seed: int) -> dict[str, Run]:
        trained = lab.trained(seed, fraction, list(dict.fromkeys([*specs, *lab.controls])))
        names = dict(zip(lab.controls, (LAST, ONLY), strict=True))
        return {BERT: lab.bert(seed, fraction)} | {names.get(name, name): run for name, run in trained.items()}

    return lab.over_seeds(find)


def _rows(lab: Lab, fraction: float, models: dict[str, list[Run]]) -> list[dict[str, Any]]:
    rivals = {title: name for title, name in (("BERT", BERT), ("last", LAST), ("last layer", ONLY)) if name in models}
    tests = against(lab.task, models, rivals)
    whole = models[BERT][0].metrics["parameters"]
    return [
        {"model": name, "fraction": fraction} | (found := describe(lab.task, runs)) | tests[name]
        | {"% of BERT": 100 * found["parameters"] / whole}
        for name, runs in models.items()
    ]  # fmt: skip


def zoo(lab: Lab) -> Found:
    """All heads, or those asked for, at every fraction read, beside BERT and the controls."""
    specs = lab.heads if lab.experiment.heads else [*dict.fromkeys([*(n for n in HEADS if n != "last"), lab.default])]
    rows = [row for fraction in lab.read_at for row in _rows(lab, fraction, _standing(lab, fraction, specs))]
    words = []
    for fraction in lab.read_at:
        here = [row for row in rows if row["fraction"] == fraction]
        bert = next(row for row in here if row["model"] == BERT)
        heads = [row for row in here if row["model"] not in (BERT, LAST, ONLY)]
        best = max(heads, key=lambda row: row["validation"])
        better = sum(row["over BERT"] > 0 and row["p, BERT"] < 0.05 for row in heads)
        words.append(
            f"After {fraction:g} epochs {better} of {len(heads)} heads are above BERT ({bert['score']:.1f}) with "
            f"p < .05; validation prefers {best['model']}: {best['score']:.1f}."
        )
    figures = [
        Figure(
            title=f"Heads after {fraction:g} epochs",
            kind="bar",
            x="score",
            y="model",
            low="low",
            high="high",
            where={"fraction": fraction},
        )
        for fraction in lab.read_at
    ]
    columns = ["model", "fraction", "parameters", "% of BERT", *SCORE, "validation", "over BERT", "p, BERT"]
    columns += ["over last", "p, last", "over last layer", "p, last layer", "seconds"]
    return {"columns": columns, "rows": rows, "figures": figures, "words": words}


def longer(lab: Lab) -> Found:
    """Heads on the states of a backbone fine-tuned for two epochs and more."""
    late = [fraction for fraction in lab.fractions if fraction >= 2] or [max(lab.fractions)]
    rows = []
    for fraction in late:
        models = _standing(lab, fraction, [lab.default])
        for how in lab.ways():
            name = f"BERT + {lab.default} ({how})"
            pairs = zip(lab.seeds, models[BERT], models[lab.default], strict=True)
            models[name] = [lab.ensemble(seed, [bert, head], how) for seed, bert, head in pairs]
        rows += _rows(lab, fraction, models)
    heads = [row for row in rows if row["model"] == lab.default]
    words = [
        f"After {row['fraction']:g} epochs {lab.default} is {row['over BERT']:+.1f} points from BERT "
        f"(p {row['p, BERT']:.3f})."
        for row in heads
    ]
    figure = Figure(
        title="On longer fine-tuning", kind="bar", x="score", y="model", color="fraction", low="low", high="high"
    )
    columns = ["model", "fraction", *SCORE, "validation", "over BERT", "p, BERT", "over last", "p, last"]
    return {"columns": columns, "rows": rows, "figures": [figure], "words": words}


def ensemble(lab: Lab) -> Found:
    """BERT, the head, BERT with the head in every way, and two heads together."""
    rows, words = [], []
    other = next((spec for spec in lab.heads if spec != lab.default), "learned")
    for fraction in lab.read_at:
        models = lab.over_seeds(
            lambda seed, at=fraction: {BERT: lab.bert(seed, at)} | lab.trained(seed, at, [lab.default, other])
        )
        for how in lab.ways():
            for first, second in ((BERT, lab.default), (other, lab.default)):
                runs = zip(lab.seeds, models[first], models[second], strict=True)
                models[f"{first} + {second} ({how})"] = [lab.ensemble(seed, [a, b], how) for seed, a, b in runs]
        tests = against(lab.task, models, {"BERT": BERT, "head": lab.default})
        rows += [{"model": n, "fraction": fraction} | describe(lab.task, r) | tests[n] for n, r in models.items()]
        mixed = [row for row in rows if row["fraction"] == fraction and " + " in row["model"]]
        best = max(mixed, key=lambda row: row["validation"])
        words.append(
            f"After {fraction:g} epochs validation prefers {best['model']}: {best['over head']:+.1f} points over the "
            f"head alone (p {best['p, head']:.3f})."
        )
    figure = Figure(title="Ensembles", kind="bar", x="score", y="model", color="fraction", low="low", high="high")
    columns = ["model", "fraction", *SCORE, "validation", "over BERT", "p, BERT", "over head", "p, head"]
    return {"columns": columns, "rows": rows, "figures": [figure], "words": words}


def cross_checkpoint(lab: Lab) -> Found:
    """Heads trained at an early fraction, read with the states of later ones."""
    early = lab.read_at[0]
    later = [fraction for fraction in lab.fractions if fraction > early]
    if not later:
        raise BertVisionError(
            "cross-checkpoint needs a fraction after the one heads are trained at: --fractions 0.3,1."
        )
    rows = []
    for fraction in [early, *later]:

        def find(seed: int, at: float = fraction) -> Mapping[str, Run]:
            trained = lab.trained(seed, early, lab.heads)
            return trained if at == early else lab.carried(seed, trained, at)

        found = lab.over_seeds(find)
        models = {BERT: lab.over_seeds(lambda seed, at=fraction: {BERT: lab.bert(seed, at)})[BERT]} | found
        tests = against(lab.task, models, {"BERT": BERT})
        rows += [
            {"model": name, "trained at": "" if name == BERT else f"{early:g}", "fraction": fraction}
            | describe(lab.task, runs) | tests[name]
            for name, runs in models.items()
        ]  # fmt: skip
    mine = [row for row in rows if row["model"] == lab.default]
    words = [
        f"{lab.default}, trained on the states after {early:g} epochs, scores {row['score']:.1f} on those after "
        f"{row['fraction']:g} ({row['over BERT']:+.1f} from BERT there)."
        for row in mine
    ]
    figure = Figure(
        title="Trained early, read later", kind="line", x="fraction", y="score", color="model", low="low", high="high"
    )
    columns = ["model", "trained at", "fraction", *SCORE, "over BERT", "p, BERT"]
    return {"columns": columns, "rows": rows, "figures": [figure], "words": words}


def less_data(lab: Lab) -> Found:
    """The head from a share of the labels, on its own checkpoint and on the last one."""
    early, late = lab.read_at[0], max(lab.fractions)
    rows = []
    for share in sorted(lab.options.shares):
        for fraction in dict.fromkeys([early, late]):

            def find(seed: int, share: float = share, at: float = fraction) -> Mapping[str, Run]:
                if share == 0:
                    return {lab.default: _untrained(lab, seed, at)}
                # Stored: every share reads the same states.
                trained = lab.trained(seed, early, [lab.default], labels=share, activations="store")
                return trained if at == early else lab.carried(seed, trained, at)

            found = lab.over_seeds(find)
            rows += [
                {"model": n, "labels": share, "fraction": fraction} | describe(lab.task, r) for n, r in found.items()
            ]
    for fraction in dict.fromkeys([early, late]):
        bert = lab.over_seeds(lambda seed, at=fraction: {BERT: lab.bert(seed, at)})[BERT]
        line = describe(lab.task, bert)
        rows += [{"model": BERT, "labels": share, "fraction": fraction} | line for share in sorted(lab.options.shares)]
    words = []
    for fraction in dict.fromkeys([early, late]):
        bert = next(row["score"] for row in rows if row["model"] == BERT and row["fraction"] == fraction)
        above = [r["labels"] for r in rows if r["model"] != BERT and r["fraction"] == fraction and r["score"] > bert]
        share = f"from {100 * min(above):g} % of the labels on" if above else "with no share of the labels"
        words.append(f"On the states after {fraction:g} epochs the head is above BERT ({bert:.1f}) {share}.")
    for row in rows:
        row["model, states"] = f"{row['model']}, {row['fraction']:g}"
    figure = Figure(
        title="Score by labels", kind="line", x="labels", y="score", color="model, states", low="low", high="high"
    )
    return {"columns": ["model", "labels", "fraction", *SCORE], "rows": rows, "figures": [figure], "words": words}


def _untrained(lab: Lab, seed: int, fraction: float) -> Run:
    """The head as it is before its first label."""
    prepared, point = lab.prepared(seed), lab.point(seed, fraction)
    place = point.directory / f"{slug(lab.default)}-untrained-{seed}"
    if is_finished(place):
        return Run(place)
    shape = prepared.shape(point.backbone, [lab.default])
    view = view_of([lab.default], shape)
    models = {lab.default: new_head(prepared, lab.default, shape, view)}
    found = {
        name: prepared.predict(
            models, states(prepared, point, name, view, prepared.ordered(split), lab.notify), split, name
        )
        for name, split in prepared.held_out.items()
    }
    parameters = sum(p.numel() for p in models[lab.default].parameters())
    extra = {"parameters": parameters, "seconds": {"finetune": point.seconds, "head": 0.0, "total": point.seconds}}
    predictions = {name: each[lab.default] for name, each in found.items()}
    return finish(
        prepared,
        point,
        place,
        "carried",
        lab.default,
        predictions,
        extra,
        weights=models[lab.default].state_dict(),
        shape=shape,
    )
