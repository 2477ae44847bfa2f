"""The page of claims: what the paper says, what was measured here with each encoder, and a verdict."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bertvision.errors import BertVisionError
from bertvision.files import atomic_write
from bertvision.lab.studies import StudyResult, find_results

Row = dict[str, Any]
Outcome = Literal["yes", "no", "unclear"]

SIGNIFICANT = 0.05
BERT, RETRAINED, LAST_LAYER = "BERT", "last", "last layer"
"""What models are compared with, as the columns of studies name it."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One comparison that bears on a claim."""

    text: str
    """What was measured, with its interval."""
    outcome: Outcome
    """Whether it supports the claim; "unclear" if the data cannot tell."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement of the paper and how results of a study bear on it."""

    text: str
    published: str
    study: str
    measure: Callable[[StudyResult], Iterator[Measurement]]


@dataclass(frozen=True, kw_only=True)
class ClaimRow:
    """A claim, tested with one encoder."""

    claim: Claim
    encoder: str
    measurements: list[tuple[str, Measurement]]
    """With the task of each."""
    commands: list[str]
    caveats: list[str]

    @property
    def verdict(self) -> str:
        """Return "holds", "holds in part", "does not hold" or "cannot be told"."""
        outcomes = {measurement.outcome for _, measurement in self.measurements}
        if outcomes == {"yes"}:
            return "holds"
        if "yes" in outcomes:
            return "holds in part"
        return "does not hold" if "no" in outcomes else "cannot be told"


def _best_head(rows: Sequence[Row]) -> Row | None:
    """Return the head with the best validation score. BERT, the controls and ensembles are no heads."""
    heads = [row for row in rows if row["model"] != BERT and not row["model"].startswith("control:")]
    heads = [row for row in heads if "over BERT" in row and " + " not in row["model"]]
    return max(heads, key=lambda row: row["validation"], default=None)


def _fractions(result: StudyResult) -> list[float]:
    return sorted({row["fraction"] for row in result.rows})


def _at(result: StudyResult, fraction: float) -> list[Row]:
    return [row for row in result.rows if row["fraction"] == fraction]


def _difference(row: Row, baseline: str, where: str) -> Measurement:
    """Return how much a model is better than a baseline, by the paired test of the study."""
    difference, p = row[f"over {baseline}"], row[f"p, {baseline}"]
    low, high = row[f"over {baseline}, low"], row[f"over {baseline}, high"]
    outcome: Outcome = "unclear" if p >= SIGNIFICANT else "yes" if difference > 0 else "no"
    text = f"{where}: {row['score']:.1f}, {difference:+.1f} ({low:+.1f} to {high:+.1f}), p = {p:.3f}"
    return Measurement(text=text, outcome=outcome)


def _over(baseline: str) -> Callable[[StudyResult], Iterator[Measurement]]:
    """Return the comparison of the best head with a baseline at each fraction."""

    def measure(result: StudyResult) -> Iterator[Measurement]:
        for fraction in _fractions(result):
            best = _best_head(_at(result, fraction))
            if best is not None and f"over {baseline}" in best:
                yield _difference(best, baseline, f"{best['model']} at {fraction:g}")

    return measure


def _twice_as_long(result: StudyResult) -> Iterator[Measurement]:
    """Compare heads with BERT that was fine-tuned at least twice as long, by their intervals."""
    bert = {row["fraction"]: row for row in result.rows if row["model"] == BERT}
    for fraction in _fractions(result):
        heads = [row for row in _at(result, fraction) if row["model"] != BERT]
        later = min((at for at in bert if at >= 2 * fraction), default=None)
        if not heads or later is None:
            continue
        best, baseline = max(heads, key=lambda row: row["validation"]), bert[later]
        outcome: Outcome = "unclear"
        if best["score"] >= baseline["score"]:
            outcome = "yes"
        elif best["high"] < baseline["low"]:
            outcome = "no"
        yield Measurement(
            text=f"{best['model']} at {fraction:g}: {best['score']:.1f} ({best['low']:.1f} to {best['high']:.1f}); "
            f"BERT at {later:g}: {baseline['score']:.1f} ({baseline['low']:.1f} to {baseline['high']:.1f})",
            outcome=outcome,
        )


def _ensemble_over_head(result: StudyResult) -> Iterator[Measurement]:
    for fraction in _fractions(result):
        rows = [row for row in _at(result, fraction) if row["model"].endswith("(max)") and "over head" in row]
        if rows:
            best = max(rows, key=lambda row: row["validation"])
            yield _difference(best, "head", f"{best['model']} at {fraction:g}")


def _later_checkpoint(result: StudyResult) -> Iterator[Measurement]:
    early, *later = _fractions(result)
    own = {row["model"]: row for row in _at(result, early) if row["model"] != BERT}
    for fraction in later:
        rows = [row for row in _at(result, fraction) if row["model"] in own]
        for row in rows:
            before = own[row["model"]]
            outcome: Outcome = "unclear"
            if row["low"] > before["high"]:
                outcome = "yes"
            elif row["high"] < before["low"]:
                outcome = "no"
            yield Measurement(
                text=f"{row['model']}, trained at {early:g}: {before['score']:.1f} there, {row['score']:.1f} "
                f"({row['low']:.1f} to {row['high']:.1f}) at {fraction:g}",
                outcome=outcome,
            )


def _tenth_of_labels(result: StudyResult) -> Iterator[Measurement]:
    for fraction in _fractions(result):
        rows = {row["labels"]: row for row in _at(result, fraction) if row["model"] != BERT}
        if 0.1 not in rows or 1 not in rows:
            continue
        few, all_labels = rows[0.1], rows[1]
        kept = 100 * few["score"] / all_labels["score"]
        outcome: Outcome = "yes" if kept >= 97 else "no" if few["high"] < 0.97 * all_labels["low"] else "unclear"
        yield Measurement(
            text=f"states at {fraction:g}: {few['score']:.1f} ({few['low']:.1f} to {few['high']:.1f}) with a tenth, "
            f"{all_labels['score']:.1f} with all, {kept:.1f} %",
            outcome=outcome,
        )


def _second_answers(result: StudyResult) -> Iterator[Measurement]:
    for row in result.rows:
        if row["model"] != BERT:
            share = row["second right"]
            text = f"{row['model']} at {row['fraction']:g}: {share:.0f} % of {row['wrong']:.0f} errors"
            yield Measurement(text=text, outcome="yes" if share >= 44 else "unclear" if share >= 33 else "no")


def _predicted_null(result: StudyResult) -> Iterator[Measurement]:
    for row in result.rows:
        if row["model"] != BERT:
            share = row["wrong HasAns that were null"]
            text = f"{row['model']} at {row['fraction']:g}: {share:.0f} %"
            yield Measurement(text=text, outcome="yes" if share > 50 else "no")


def _upper_layers(result: StudyResult) -> Iterator[Measurement]:
    for fraction in _fractions(result):
        weights = {row["layer"]: row["weight"] for row in _at(result, fraction)}
        last = max(weights)
        upper = sum(weight for layer, weight in weights.items() if layer > last / 2) / sum(weights.values())
        text = f"at {fraction:g}: last layer {weights[last]:.3f}, upper half {100 * upper:.0f} % of the weight"
        yield Measurement(text=text, outcome="yes" if weights[last] == max(weights.values()) else "no")


CLAIMS = [
    Claim(
        text="A small head on all layers is better than BERT at the same checkpoint.",
        published="SQuAD 2.0, BERT-large, F1: 74.0 against 70.2 at 0.3 epochs; 79.0 against 77.7 at 1",
        study="zoo",
        measure=_over(BERT),
    ),
    Claim(
        text="A head at an early checkpoint is at least as good as BERT fine-tuned about twice as long.",
        published="SQuAD 2.0, F1: 79.0 at 1 epoch against 79.2 at 2",
        study="curve",
        measure=_twice_as_long,
    ),
    Claim(
        text="The gain is not merely that of training BERT's own head again on frozen states.",
        published="not measured; a control of this project",
        study="zoo",
        measure=_over(RETRAINED),
    ),
    Claim(
        text="The gain comes from all layers, not from the head on the last one.",
        published="not measured; a control of this project",
        study="zoo",
        measure=_over(LAST_LAYER),
    ),
    Claim(
        text="The element-wise maximum of BERT and head is better than the head.",
        published="SQuAD 2.0, F1: 79.8 against 79.0 at 1 epoch; 73.4 against 74.0 at 0.3",
        study="ensemble",
        measure=_ensemble_over_head,
    ),
    Claim(
        text="A head trained on an early checkpoint is better on the states of a later one.",
        published="SQuAD 2.0, F1: 79.1 on states of 1 epoch, 74.0 on its own of 0.3",
        study="cross-checkpoint",
        measure=_later_checkpoint,
    ),
    Claim(
        text="A tenth of the labels is enough for a head (at least 97 % of the score with all of them).",
        published="SQuAD 2.0, F1: 76.5 with 10 %, 78.8 with all: 97.1 %",
        study="less-data",
        measure=_tenth_of_labels,
    ),
    Claim(
        text="Heads still gain on the states of two epochs.",
        published="SQuAD 2.0, F1: 79.7 against 79.2",
        study="longer",
        measure=_over(BERT),
    ),
    Claim(
        text="Most has-answer questions that are answered wrongly were predicted to have no answer.",
        published="65 % at 0.3 epochs",
        study="question-types",
        measure=_predicted_null,
    ),
    Claim(
        text="The second most likely answer is right for many errors.",
        published="44 % at 0.3 epochs",
        study="second-answer",
        measure=_second_answers,
    ),
    Claim(
        text="Learned layer weights rise towards the last layer.",
        published="they rise from layer 18 of 24; 0.108 at 23, 0.24 at 24",
        study="layer-weights",
        measure=_upper_layers,
    ),
]


def measure_claims(results: Sequence[StudyResult]) -> list[ClaimRow]:
    """Return a row for each claim and encoder that results were measured for."""
    rows = []
    for claim in CLAIMS:
        own = [result for result in results if result.study == claim.study]
        for encoder in dict.fromkeys(result.encoder for result in own):
            measured = [
                (result, measurement)
                for result in own
                if result.encoder == encoder
                for measurement in claim.measure(result)
            ]
            if measured:
                used = list({id(result): result for result, _ in measured}.values())
                rows.append(
                    ClaimRow(
                        claim=claim,
                        encoder=encoder,
                        measurements=[(result.task, measurement) for result, measurement in measured],
                        commands=list(dict.fromkeys(result.command for result in used)),
                        caveats=list(dict.fromkeys(c for result in used for c in result.caveats)),
                    )
                )
    return rows


def render_claims(rows: Sequence[ClaimRow], command: str) -> str:
    """Return the page in Markdown."""
    lines = ["# The paper's claims", "", f"Written by `{command}`. A row is printed only where results were measured."]
    lines += [
        "A comparison supports a claim if it is significant (p < .05, Holm-corrected, or as the claim says); a claim "
        "holds if all of them support it, and holds in part if some do.",
    ]
    for claim in CLAIMS:
        own = [row for row in rows if row.claim is claim]
        if not own:
            continue
        lines += ["", f"## {claim.text}", "", f"Published: {claim.published}.", ""]
        lines += ["| encoder | measured | verdict |", "|---|---|---|"]
        for row in own:
            cells = "<br>".join(f"{task}, {measurement.text}" for task, measurement in row.measurements)
            lines.append(f"| {row.encoder} | {cells} | {row.verdict} |")
        for row in own:
            caveats = f" ({'; '.join(row.caveats)})" if row.caveats else ""
            lines += ["", f"{row.encoder}: {', '.join(f'`{command}`' for command in row.commands)}{caveats}"]
    return "\n".join(lines) + "\n"


def write_claims(roots: Sequence[str | Path], out: Path) -> list[ClaimRow]:
    """Write the page of claims from the studies below `roots`, and return its rows."""
    rows = measure_claims([result for root in roots for result in find_results(Path(root))])
    if not rows:
        raise BertVisionError(
            f"No studies of the paper's claims below {', '.join(map(str, roots))}. "
            "`bertvision study all experiments/claims-minilm.toml` makes them."
        )
    command = shlex.join(["bertvision", "report", *map(str, roots), "--claims", str(out)])
    with atomic_write(out) as file:
        file.write(render_claims(rows, command).encode())
    return rows
