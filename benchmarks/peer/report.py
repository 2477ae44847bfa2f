"""The report: a table, statements that are derived from the cells, budgets, and charts."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from cells import Cells, MissingCell

from bertvision.files import write_json
from bertvision.statistics import PairedOutcomes, ScoreDifference, interval, significance
from bertvision.tasks import TextTask
from peer.chart import draw
from peer.data import COLUMNS
from peer.meter import machine_name
from peer.plan import METHODS, SEEDS, Job, Results, plan

BASELINE = "fine-tuning"
OURS = "bertvision"
DEFAULT_LENGTH = 0.3
"""Epochs after which `bertvision run` trains heads."""
BUDGETS = (5, 15, 60, 300)
SIGNIFICANT = 0.05
RESAMPLES = 500


@dataclass(frozen=True, kw_only=True)
class Row:
    """A method at one length on one data set."""

    column: str
    method: str
    variant: str
    length: float
    setting: str
    score: float
    """The mean over seeds."""
    low: float
    high: float
    seeds: int
    validation: float
    """Of the first seed, by which lengths are chosen."""
    seconds: float | None
    """Of the first seed, if it ran alone on the machine of the report; else None: the cell is not timed."""
    record: dict[str, Any] = field(repr=False)
    """The record of the first seed."""
    outcomes: list[np.ndarray] = field(repr=False)
    """Of each seed. (N, 3), as of the task."""

    @property
    def label(self) -> str:
        """The method and the length."""
        unit = METHODS[self.method].unit
        return f"{self.method} ({self.length:g} {unit})" + (", BERT's own head" if self.variant == "bert" else "")

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON, without the outcomes of each example."""
        return {key: value for key, value in asdict(self).items() if key != "outcomes"}


def scored_task(column: str) -> TextTask:
    """Return a task that computes the metric of a data set from outcomes."""
    found = COLUMNS[column]
    classes = () if found.is_regression else ("0", "1")
    return TextTask(name=column, summary="", texts=("text",), classes=classes, metrics=(found.metric,))


def current_keys(results: Results) -> set[str]:
    """Return the keys of all cells that are not stale."""
    keys = set()
    for column, method, seed in itertools.product(COLUMNS, METHODS, SEEDS):
        if METHODS[method].suits(column):
            jobs = [*results.lengths(method, column, seed), *results.trials(method, column)]
            keys |= {job.key for job in jobs if results.find(job)} | {job.labels_key for job in jobs}
    return keys


def outcomes(cells: Cells, job: Job, errors: np.ndarray) -> np.ndarray:
    """Rebuild the outcomes of the task from the errors of a cell and the labels of its data set. (N, 3)"""
    labels = cells.read(job.labels_key).outcomes["labels"][:, 0].astype(np.float64)
    return np.stack([labels, labels + errors[:, 0], np.zeros(len(labels))], axis=1)


def rows(results: Results, columns: Sequence[str], methods: Sequence[str], seeds: Sequence[int]) -> list[Row]:
    """Return every method and length of every data set that has been run with the first seed."""
    jobs = [job for column in columns for name in methods for job in _lengths(results, name, column)]
    machine = reference_machine([record for job in jobs if (record := results.record(job))])
    return [row for job in jobs for row in _rows_of(results, job, seeds, machine)]


def _lengths(results: Results, method: str, column: str) -> list[Job]:
    return results.lengths(method, column, SEEDS[0]) if METHODS[method].suits(column) else []


def reference_machine(records: Sequence[dict[str, Any]]) -> str:
    """Return the machine with the most timed cells, the only one whose seconds are reported."""
    names = Counter(machine_name(record) for record in records if record["alone"])
    return names.most_common(1)[0][0] if names else ""


def _rows_of(results: Results, job: Job, seeds: Sequence[int], machine: str) -> list[Row]:
    """Return a row for each variant of a job."""
    jobs = [replace(job, seed=seed) for seed in seeds] if METHODS[job.method].random else [job]
    found = [(each, finished) for each in jobs if (finished := results.find(each))]
    if not found or found[0][0].seed != SEEDS[0]:
        return []
    task, first = scored_task(job.column), found[0][1].record
    is_timed = first["alone"] and machine_name(first) == machine
    made = []
    for variant, scores in first["scores"].items():
        try:
            values = [outcomes(results.cells, each, finished.outcomes[variant]) for each, finished in found]
        except MissingCell:
            return []
        low, high = interval(task, values, resamples=RESAMPLES)
        made.append(
            Row(
                column=job.column,
                method=job.method,
                variant=variant,
                length=job.length,
                setting=str(job.setting),
                score=float(np.mean([finished.record["scores"][variant][task.primary] for _, finished in found])),
                low=low,
                high=high,
                seeds=len(found),
                validation=scores["grade"][0],
                seconds=first["total"] if is_timed and variant == "model" else None,
                record=first,
                outcomes=values,
            )
        )
    return made


def difference(first: Row, second: Row) -> ScoreDifference:
    """Test the difference between two rows, second minus first, on the seeds that both have."""
    count = min([len(row.outcomes) for row in (first, second) if METHODS[row.method].random], default=1)
    values = [row.outcomes[:count] if METHODS[row.method].random else row.outcomes * count for row in (first, second)]
    return significance(PairedOutcomes(scored_task(first.column), values[0], values[1]), RESAMPLES)[0]


def chosen(found: Sequence[Row], method: str, column: str) -> Row | None:
    """Return the length of a method that validation prefers, the shorter of equal ones."""
    own = [row for row in found if (row.method, row.column, row.variant) == (method, column, "model")]
    return max(sorted(own, key=lambda row: row.length), key=lambda row: row.validation, default=None)


def default_row(found: Sequence[Row], column: str) -> Row | None:
    """Return the row of our defaults."""
    own = [row for row in found if (row.method, row.column, row.variant) == (OURS, column, "model")]
    return next((row for row in own if row.length == DEFAULT_LENGTH), None)


def within(found: Sequence[Row], method: str, column: str, seconds: float) -> Row | None:
    """Return the best run of a method by validation among those that take at most so many seconds."""
    fits = [row for row in found if row.seconds is not None and row.seconds <= seconds]
    return chosen(fits, method, column)


def against_baseline(found: Sequence[Row], columns: Sequence[str]) -> list[str]:
    """Compare our defaults with full fine-tuning at the length that validation prefers."""
    lines, reached, compared = [], [], []
    for column in columns:
        ours, baseline = default_row(found, column), chosen(found, BASELINE, column)
        if ours is None or baseline is None:
            continue
        test, share = difference(baseline, ours), ours.score / baseline.score
        time_share = ours.seconds / baseline.seconds if ours.seconds and baseline.seconds else None
        seconds = "(not timed)" if time_share is None else f"in {time_share:.2f} of its time"
        lines.append(
            f"{column}: our defaults {ours.score:.1f}, full fine-tuning of {baseline.length:g} epochs "
            f"{baseline.score:.1f}: {share:.1%} of its score {seconds}; difference {test.mean:+.1f} "
            f"({test.low:+.1f} to {test.high:+.1f}), p = {test.p:.3f}."
        )
        if time_share is not None:
            compared.append(column)
            reached += [column] * (share >= 0.99 and time_share <= 1 / 3)
    if compared:
        names = f": {', '.join(reached)}" if reached else ""
        lines.append(
            f"At least 99 % of its score in at most a third of its time: {len(reached)} of {len(compared)}{names}."
        )
    return lines


def equal_time(found: Sequence[Row], columns: Sequence[str]) -> list[str]:
    """Set every peer, its length by validation, beside our best run by validation that takes no longer."""
    lines = []
    for column in columns:
        worse, higher, total = [], [], 0
        for method in dict.fromkeys(row.method for row in found):
            peer = None if METHODS[method].ours else chosen([r for r in found if r.seconds is not None], method, column)
            if peer is None or peer.seconds is None:
                continue
            ours = our_rival(found, column, peer.seconds)
            if ours is None:
                continue
            total += 1
            test = difference(peer, ours)
            text = f"{peer.label} {peer.score:.1f} in {peer.seconds:.0f} s, {ours.label} {ours.score:.1f} in "
            text += f"{ours.seconds:.0f} s, p = {test.p:.3f}"
            if test.mean < 0:
                (worse if test.p <= SIGNIFICANT else higher).append(text)
        if total:
            lines.append(
                f"{column}: at equal time above {total - len(worse) - len(higher)} of {total} peers."
                + (f" Significantly below: {'; '.join(worse)}." if worse else "")
                + (f" Below, not significantly: {'; '.join(higher)}." if higher else "")
            )
    return lines


def our_rival(found: Sequence[Row], column: str, seconds: float) -> Row | None:
    """Return our best run by validation within the seconds; where none is so quick, our quickest."""
    timed = [r for r in found if METHODS[r.method].ours and r.column == column and r.seconds and r.variant == "model"]
    fits = [row for row in timed if row.seconds is not None and row.seconds <= seconds]
    if fits:
        return max(fits, key=lambda row: row.validation)
    return min(timed, key=lambda row: row.seconds or 0.0, default=None)


def against_peers(found: Sequence[Row], columns: Sequence[str]) -> list[str]:
    """Compare our defaults with every peer at the length that validation prefers, whatever the time."""
    lines = ["| our defaults minus peer, points (p) | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    for method in dict.fromkeys(row.method for row in found if not METHODS[row.method].ours):
        entries = []
        for column in columns:
            ours, peer = default_row(found, column), chosen(found, method, column)
            test = difference(peer, ours) if ours and peer else None
            entries.append(f"{test.mean:+.1f} ({test.p:.3f})" if test else "")
        lines.append(f"| {method} | " + " | ".join(entries) + " |")
    return lines


def budgets(found: Sequence[Row], columns: Sequence[str]) -> list[str]:
    """Return a table of the score that every method reaches within a budget, its length by validation."""
    lines = ["| budget | method | " + " | ".join(columns) + " |", "|---:|---|" + "---:|" * len(columns)]
    for seconds in BUDGETS:
        for method in dict.fromkeys(row.method for row in found):
            best = [within(found, method, column, seconds) for column in columns]
            if any(best):
                entries = [f"{row.score:.1f}" if row else "" for row in best]
                lines.append(f"| {seconds} s | {method} | " + " | ".join(entries) + " |")
    return lines


def tuning(results: Results, columns: Sequence[str], methods: Sequence[str]) -> list[str]:
    """Say what the choice of settings costs, which the seconds of the tables leave out."""
    lines = []
    for name in methods:
        trials = {column: results.trials(name, column) for column in columns if METHODS[name].suits(column)}
        if jobs := max(trials.values(), key=len, default=[]):
            seconds = [
                f"{column} {sum(record['total'] for record in records):.0f} s"
                for column, tried in trials.items()
                if all(records := [record for job in tried if (record := results.record(job))])
                and len(records) == len(tried)
                and all(record["alone"] for record in records)
            ]
            lines.append(
                f"{name}: {len(jobs)} runs of {jobs[0].length:g} {METHODS[name].unit}"
                + (f" ({', '.join(seconds)})" if seconds else " (not timed)")
            )
    return [*lines, "Linear models: every strength is fitted to the same features; the tables leave out the others."]


def headline(found: Sequence[Row], columns: Sequence[str]) -> list[str]:
    """Return the table in short: every method at the length that validation prefers; ours at the default, too."""
    lines = ["| score, seconds | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    shown = {f"{name}, length by validation": name for name in dict.fromkeys(row.method for row in found)}
    for label, name in shown.items():
        lines.append(_line(label, [chosen(found, name, column) for column in columns]))
        if name == OURS:
            lines.append(_line(f"{name}, its defaults", [default_row(found, column) for column in columns]))
    return lines


def _line(label: str, best: Sequence[Row | None]) -> str:
    return f"| {label} | " + " | ".join(f"{row.score:.1f}{_seconds(row)}" if row else "" for row in best) + " |"


def _seconds(row: Row) -> str:
    return f", {row.seconds:.0f} s" if row.seconds is not None else ""


def details(found: Sequence[Row], column: str) -> list[str]:
    """Return the full table of a data set."""
    names = ["method", "length", "setting", "score", "95 %", "seeds", "seconds", "peak MB", "trained", "kept MB", "ms"]
    lines = [f"| {' | '.join(names)} |", "|---|" + "---:|" * (len(names) - 1)]
    for row in sorted((row for row in found if row.column == column), key=lambda row: -row.score):
        record = row.record
        own = row.variant == "model"
        seconds = "" if not own else "untimed" if row.seconds is None else f"{row.seconds:.1f}"
        peak = f"{max(record['peak_bytes'].values()) / 1e6:.0f}" if row.seconds is not None else ""
        latency = f"{1000 * record['latency']:.1f}" if row.seconds is not None else ""
        lines.append(
            f"| {row.label} | {row.length:g} | {row.setting} | {row.score:.1f} | {row.low:.1f} - {row.high:.1f} "
            f"| {row.seeds} | {seconds} | {peak} | {record['trainable']:,} | {record['kept_bytes'] / 1e6:.1f} "
            f"| {latency} |"
        )
    return lines


def write(
    results: Results, columns: Sequence[str], methods: Sequence[str], seeds: Sequence[int], every_length: bool
) -> Path:
    """Write the report: docs/peers.md where every cell has been run and timed, else docs/peers-progress.md."""
    found = rows(results, columns, methods, seeds)
    planned = list(plan(results, columns, seeds, methods, every_length=every_length))
    done = sum(results.find(job) is not None for job in planned)
    own = [row for row in found if row.variant == "model"]
    timed = sum(row.seconds is not None for row in own)
    complete = done == len(planned) and timed == len(own) > 0
    name = "peers" if complete else "peers-progress"
    shown = [column for column in columns if any(row.column == column for row in found)]
    machine = reference_machine([row.record for row in found])
    lines = [
        "# BERTVision and its peers" + ("" if complete else ": work in progress"),
        "",
        *_preface(complete, done, len(planned), timed, len(own), machine),
        "",
        *headline(found, shown),
        "",
        "## Against full fine-tuning at its best length",
        "",
        *_list(against_baseline(found, shown) or ["No data set has both yet."]),
        "",
        "## Against every peer at its best length, whatever the time",
        "",
        *against_peers(found, shown),
        "",
        "## At equal time",
        "",
        *_list(equal_time(found, shown) or ["No timed cells yet."]),
        "",
    ]
    if timed:
        lines += ["## Score by budget", "", *budgets(found, shown), ""]
    lines += ["## What tuning costs", "", *_list(tuning(results, shown, methods)), "", "## Methods", ""]
    lines += [*_list([f"{name}: {METHODS[name].summary}. Length: {METHODS[name].unit}." for name in methods]), ""]
    for column in shown:
        lines += [f"## {column} ({COLUMNS[column].metric})", ""]
        if draw(Path("docs"), column, [row.to_dict() for row in own if row.column == column]):
            lines += _picture(column)
        lines += [*details(found, column), ""]
    statements = against_baseline(found, shown) + equal_time(found, shown)
    write_json(
        Path(f"benchmarks/results/{name}.json"),
        {"machine": machine, "rows": [row.to_dict() for row in found], "statements": statements},
    )
    path = Path(f"docs/{name}.md")
    path.write_text("\n".join(lines))
    return path


def _preface(complete: bool, done: int, planned: int, timed: int, rows: int, machine: str) -> list[str]:
    text = (
        "`python benchmarks/peers.py --alone`: MiniLM; the same rows and seeds for all methods, a tenth of train to "
        "choose on. Scores are means over seeds with 95 % intervals. Settings and lengths are chosen by validation "
        "with the first seed; every length is its own run. Seconds are those from texts in memory to a trained, "
        "validated model, of the first seed, alone on one machine; the choice of settings is stated separately."
    )
    if complete:
        return [text, "", f"Machine: {machine}."]
    where = f"Machine of the timed cells: {machine}." if machine else "Scores only: no cell is timed."
    return [
        text,
        "",
        f"**Unfinished:** {done} of {planned} cells that are known to be needed have been run; {timed} of {rows} rows "
        f"are timed. {where} The last complete table is docs/peers.md.",
    ]


def _list(lines: Sequence[str]) -> list[str]:
    return [f"- {line}" for line in lines]


def _picture(column: str) -> list[str]:
    return [
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="peers-{column}-dark.svg">'
        f'<img alt="Score by seconds" src="peers-{column}.svg"></picture>',
        "",
    ]
