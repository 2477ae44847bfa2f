"""Which model is better: the curve, the zoo, ensembles, longer fine-tuning, other checkpoints, fewer labels."""

from collections.abc import Mapping, Sequence
from typing import Any

from bertvision.errors import BertVisionError
from bertvision.heads import BERT_HEAD, HEADS, required_view
from bertvision.lab.pipeline.evaluation import finish
from bertvision.lab.pipeline.head_training import new_head
from bertvision.lab.pipeline.states import states
from bertvision.lab.studies.context import StudyContext, against, describe
from bertvision.lab.studies.result import Figure
from bertvision.records import Seconds
from bertvision.runs import Run, is_finished, slug

BERT, LAST, ONLY = "BERT", "control: last, retrained", "control: last layer only"
SCORE = ["score", "low", "high"]
StudyRows = dict[str, Any]


def curve(context: StudyContext) -> StudyRows:
    """BERT by fraction: score, training loss, seconds; heads at the fractions read."""
    rows: list[dict[str, Any]] = []
    for fraction in context.fractions:
        found = context.over_seeds(lambda seed, at=fraction: {BERT: context.bert(seed, at)})
        losses = [run.metrics.training_loss or 0.0 for run in found[BERT]]
        rows.append({"model": BERT, "fraction": fraction, "training loss": sum(losses) / len(losses)})
        rows[-1] |= describe(context.task, found[BERT])
        if fraction in context.head_fractions:
            heads = context.over_seeds(lambda seed, at=fraction: context.trained(seed, at, context.heads))
            rows += [
                {"model": name, "fraction": fraction} | describe(context.task, runs) for name, runs in heads.items()
            ]
    best = max((row for row in rows if row["model"] == BERT), key=lambda row: row["validation"])
    words = [f"Validation prefers BERT after {best['fraction']:g} epochs: {best['score']:.1f}."]
    for row in rows:
        if row["model"] == context.default:
            longer = [r for r in rows if r["model"] == BERT and r["score"] >= row["score"]]
            reach = f"BERT reaches that after {longer[0]['fraction']:g}" if longer else "BERT does not reach that here"
            words.append(f"{context.default} after {row['fraction']:g} epochs: {row['score']:.1f}; {reach}.")
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


def _standing(context: StudyContext, fraction: float, specs: Sequence[str]) -> dict[str, list[Run]]:
    """BERT, both controls and heads at a fraction, over seeds."""

    def find(seed: int) -> dict[str, Run]:
        trained = context.trained(seed, fraction, list(dict.fromkeys([*specs, *context.controls])))
        names = dict(zip(context.controls, (LAST, ONLY), strict=True))
        return {BERT: context.bert(seed, fraction)} | {names.get(name, name): run for name, run in trained.items()}

    return context.over_seeds(find)


def _rows(context: StudyContext, fraction: float, models: dict[str, list[Run]]) -> list[dict[str, Any]]:
    rivals = {title: name for title, name in (("BERT", BERT), ("last", LAST), ("last layer", ONLY)) if name in models}
    tests = against(context.task, models, rivals)
    whole = models[BERT][0].metrics.parameters
    return [
        {"model": name, "fraction": fraction} | (found := describe(context.task, runs)) | tests[name]
        | {"% of BERT": 100 * found["parameters"] / whole}
        for name, runs in models.items()
    ]  # fmt: skip


def zoo(context: StudyContext) -> StudyRows:
    """All heads, or those asked for, at every fraction read, beside BERT and the controls."""
    specs = (
        context.heads
        if context.experiment.heads
        else [*dict.fromkeys([*(n for n in HEADS if n != BERT_HEAD), context.default])]
    )
    rows = [
        row
        for fraction in context.head_fractions
        for row in _rows(context, fraction, _standing(context, fraction, specs))
    ]
    words = []
    for fraction in context.head_fractions:
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
        for fraction in context.head_fractions
    ]
    columns = ["model", "fraction", "parameters", "% of BERT", *SCORE, "validation", "over BERT", "p, BERT"]
    columns += ["over last", "p, last", "over last layer", "p, last layer", "seconds"]
    return {"columns": columns, "rows": rows, "figures": figures, "words": words}


def longer(context: StudyContext) -> StudyRows:
    """Heads on the states of a backbone fine-tuned for two epochs and more."""
    late = [fraction for fraction in context.fractions if fraction >= 2] or [max(context.fractions)]
    rows = []
    for fraction in late:
        models = _standing(context, fraction, [context.default])
        for how in context.ways():
            name = f"BERT + {context.default} ({how})"
            pairs = zip(context.seeds, models[BERT], models[context.default], strict=True)
            models[name] = [context.ensemble(seed, [bert, head], how) for seed, bert, head in pairs]
        rows += _rows(context, fraction, models)
    heads = [row for row in rows if row["model"] == context.default]
    words = [
        f"After {row['fraction']:g} epochs {context.default} is {row['over BERT']:+.1f} points from BERT "
        f"(p {row['p, BERT']:.3f})."
        for row in heads
    ]
    figure = Figure(
        title="On longer fine-tuning", kind="bar", x="score", y="model", color="fraction", low="low", high="high"
    )
    columns = ["model", "fraction", *SCORE, "validation", "over BERT", "p, BERT", "over last", "p, last"]
    return {"columns": columns, "rows": rows, "figures": [figure], "words": words}


def ensemble(context: StudyContext) -> StudyRows:
    """BERT, the head, BERT with the head in every way, and two heads together."""
    rows, words = [], []
    other = next((spec for spec in context.heads if spec != context.default), "learned")
    for fraction in context.head_fractions:
        models = context.over_seeds(
            lambda seed, at=fraction: (
                {BERT: context.bert(seed, at)} | context.trained(seed, at, [context.default, other])
            )
        )
        for how in context.ways():
            for first, second in ((BERT, context.default), (other, context.default)):
                runs = zip(context.seeds, models[first], models[second], strict=True)
                models[f"{first} + {second} ({how})"] = [context.ensemble(seed, [a, b], how) for seed, a, b in runs]
        tests = against(context.task, models, {"BERT": BERT, "head": context.default})
        rows += [{"model": n, "fraction": fraction} | describe(context.task, r) | tests[n] for n, r in models.items()]
        mixed = [row for row in rows if row["fraction"] == fraction and " + " in row["model"]]
        best = max(mixed, key=lambda row: row["validation"])
        words.append(
            f"After {fraction:g} epochs validation prefers {best['model']}: {best['over head']:+.1f} points over the "
            f"head alone (p {best['p, head']:.3f})."
        )
    figure = Figure(title="Ensembles", kind="bar", x="score", y="model", color="fraction", low="low", high="high")
    columns = ["model", "fraction", *SCORE, "validation", "over BERT", "p, BERT", "over head", "p, head"]
    return {"columns": columns, "rows": rows, "figures": [figure], "words": words}


def cross_checkpoint(context: StudyContext) -> StudyRows:
    """Heads trained at an early fraction, read with the states of later ones."""
    early = context.head_fractions[0]
    later = [fraction for fraction in context.fractions if fraction > early]
    if not later:
        raise BertVisionError(
            "cross-checkpoint needs a fraction after the one heads are trained at: --fractions 0.3,1."
        )
    rows = []
    for fraction in [early, *later]:

        def find(seed: int, at: float = fraction) -> Mapping[str, Run]:
            trained = context.trained(seed, early, context.heads)
            return trained if at == early else context.carried(seed, trained, at)

        found = context.over_seeds(find)
        models = {BERT: context.over_seeds(lambda seed, at=fraction: {BERT: context.bert(seed, at)})[BERT]} | found
        tests = against(context.task, models, {"BERT": BERT})
        rows += [
            {"model": name, "trained at": "" if name == BERT else f"{early:g}", "fraction": fraction}
            | describe(context.task, runs) | tests[name]
            for name, runs in models.items()
        ]  # fmt: skip
    mine = [row for row in rows if row["model"] == context.default]
    words = [
        f"{context.default}, trained on the states after {early:g} epochs, scores {row['score']:.1f} on those after "
        f"{row['fraction']:g} ({row['over BERT']:+.1f} from BERT there)."
        for row in mine
    ]
    figure = Figure(
        title="Trained early, read later", kind="line", x="fraction", y="score", color="model", low="low", high="high"
    )
    columns = ["model", "trained at", "fraction", *SCORE, "over BERT", "p, BERT"]
    return {"columns": columns, "rows": rows, "figures": [figure], "words": words}


def less_data(context: StudyContext) -> StudyRows:
    """The head from a share of the labels, on its own checkpoint and on the last one."""
    early, late = context.head_fractions[0], max(context.fractions)
    rows = []
    for share in sorted(context.options.shares):
        for fraction in dict.fromkeys([early, late]):

            def find(seed: int, share: float = share, at: float = fraction) -> Mapping[str, Run]:
                if share == 0:
                    return {context.default: _untrained(context, seed, at)}
                # Stored: every share reads the same states.
                trained = context.trained(seed, early, [context.default], labels=share, states="store")
                return trained if at == early else context.carried(seed, trained, at)

            found = context.over_seeds(find)
            rows += [
                {"model": n, "labels": share, "fraction": fraction} | describe(context.task, r)
                for n, r in found.items()
            ]
    for fraction in dict.fromkeys([early, late]):
        bert = context.over_seeds(lambda seed, at=fraction: {BERT: context.bert(seed, at)})[BERT]
        line = describe(context.task, bert)
        rows += [
            {"model": BERT, "labels": share, "fraction": fraction} | line for share in sorted(context.options.shares)
        ]
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


def _untrained(context: StudyContext, seed: int, fraction: float) -> Run:
    """The head as it is before its first label."""
    data, checkpoint = context.data(seed), context.checkpoint(seed, fraction)
    place = checkpoint.directory / f"{slug(context.default)}-untrained-{seed}"
    if is_finished(place):
        return Run(place)
    shape = data.shape(checkpoint.encoder, [context.default_config])
    view = required_view([context.default_config], shape)
    models = {context.default: new_head(data, context.default_config, shape, view)}
    found = {
        name: data.predict(models, states(data, checkpoint, name, view, data.ordered(split)), split, name)
        for name, split in data.held_out.items()
    }
    parameters = sum(p.numel() for p in models[context.default].parameters())
    extra = {
        "parameters": parameters,
        "seconds": Seconds(finetune=checkpoint.seconds, head=0.0),
    }
    predictions = {name: each[context.default] for name, each in found.items()}
    return finish(
        data,
        checkpoint,
        place,
        "evaluated",
        context.default,
        predictions,
        extra,
        weights=models[context.default].state_dict(),
        shape=shape,
    )
