"""BERTVision beside full fine-tuning, LoRA, BitFit, probes and embeddings: the same data, the same minutes.

    pip install 'bertvision[bench]'
    python benchmarks/peers.py [--data-dir GLUE] [--tasks mrpc,stsb,rotten-tomatoes,snli] [--seeds 0,1,2] [--alone]
    python benchmarks/peers.py --report

A cell is a method, a length, a learning rate, a task and a seed. Each runs in its own process, and what is finished is
skipped, so the whole may be spread over days. First, the learning rates are tried with the first seed and chosen on
validation; these cells never see dev. Seconds and memory come from the cells of the first seed that ran with --alone:
nothing else may run on the machine then. Packs the cells into benchmarks/results/peers.parquet and writes
benchmarks/results/peers.json, docs/peers.md and the charts.
"""

import argparse
import itertools
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import vl_convert
from cells import Cells, Finished, MissingCell

from bertvision.files import write_json
from bertvision.statistics import interval
from bertvision.tasks import TASKS as TABLE

ROWS = 3000
DEV_ROWS = 3000
TASKS = ["mrpc", "stsb", "rotten-tomatoes", "snli"]
SEEDS = [0, 1, 2]
CELLS = Cells.of("peers")


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to get a classifier, and what is tried of it."""

    summary: str
    lengths: tuple[float, ...] = (0.0,)
    """Epochs; each length is its own run."""
    longer: tuple[float, ...] = ()
    """On single texts, also these: the only ones where so long a run has paid."""
    rates: tuple[float, ...] = (0.0,)
    """Learning rates (or strengths of regularization); validation chooses with the first seed."""
    tuned_at: float = 0.0
    """The length at which it chooses."""
    random: bool = True
    """Whether seeds differ."""

    def lengths_on(self, task: str) -> tuple[float, ...]:
        """What is run on a task."""
        return self.lengths + self.longer * (TABLE[task].kind == "text")


METHODS = {
    "fine-tuning": Method(
        summary="all weights, own decay to zero at each length",
        lengths=(0.3, 1, 2, 3),
        rates=(5e-5, 1e-4, 2e-4),
        tuned_at=3,
    ),
    "lora": Method(
        summary="peft: rank 8, alpha 16, dropout 0.1, on query and value",
        lengths=(1, 3),
        rates=(5e-4, 1e-3, 2e-3),
        tuned_at=3,
    ),
    "bitfit": Method(summary="biases and the head", lengths=(1, 3), rates=(5e-4, 1e-3, 2e-3), tuned_at=3),
    "probe-cls": Method(
        summary="logistic regression on the frozen last layer's [CLS]", rates=(0.1, 1, 10), random=False
    ),
    "probe-mean": Method(
        summary="logistic regression on the frozen last layer's mean", rates=(0.1, 1, 10), random=False
    ),
    "embedding": Method(
        summary="sentence embeddings (u, v, |u - v|, u v) and logistic regression", rates=(0.1, 1, 10), random=False
    ),
    "bertvision": Method(
        summary="fine-tuned for a fraction, default head on all layers",
        lengths=(0, 0.1, 0.3, 1),
        longer=(2,),
        rates=(1e-4, 2e-4, 3e-4),
        tuned_at=0.3,
    ),
    "bertvision-run": Method(
        summary="what `bertvision run` does unless told otherwise: a constant rate, nothing tuned", lengths=(0.3,)
    ),
}


@dataclass(frozen=True, kw_only=True)
class SeedJob:
    """One thing to run."""

    method: str
    length: float
    rate: float
    task: str
    seed: int
    tuning: bool = False
    """Whether it only serves to choose the rate."""

    @property
    def key(self) -> str:
        """Its name among the finished cells."""
        which = "tuning" if self.tuning else str(self.seed)
        return f"{self.task}/{self.method}/{self.length:g}/{self.rate:g}/{which}"

    def result(self) -> Finished:
        """What came out of it."""
        return CELLS.read(self.key)


def plan(tasks: Sequence[str], seeds: Sequence[int], methods: Sequence[str]) -> Iterator[SeedJob]:
    """Yield cells in order: the rates of a method first, since the others need the chosen one."""
    for seed, task, name in itertools.product(seeds, tasks, methods):
        if seed != SEEDS[0] and not METHODS[name].random:
            continue
        yield from trials(name, task)
        rate = chosen(name, task)
        for length in METHODS[name].lengths_on(task):
            yield SeedJob(method=name, length=length, rate=rate, task=task, seed=seed)


def trials(name: str, task: str) -> list[SeedJob]:
    """The cells that choose a rate, where there is a choice."""
    method = METHODS[name]
    rates = method.rates if len(method.rates) > 1 else ()
    return [
        SeedJob(method=name, length=method.tuned_at, rate=rate, task=task, seed=SEEDS[0], tuning=True) for rate in rates
    ]


def chosen(name: str, task: str) -> float:
    """The rate that validation prefers."""
    tried = trials(name, task)
    return max(tried, key=lambda cell: cell.result().record["grade"]).rate if tried else METHODS[name].rates[0]


def collect(given: argparse.Namespace) -> None:
    """Run every cell that is missing, each in a process of its own."""
    import peer  # here: who only reports need not install every peer

    apart = multiprocessing.get_context("fork")  # with everything imported, and nothing computed yet
    for cell in plan(given.tasks, given.seeds, given.methods):
        timed = given.alone and cell.seed == SEEDS[0] and not cell.tuning
        if cell.key in CELLS and (not timed or cell.result().record["alone"]):
            continue
        what = asdict(cell), CELLS, cell.key, given.data_dir, ROWS, DEV_ROWS, timed
        process = apart.Process(target=peer.run, args=what)
        process.start()
        process.join()
        if process.exitcode:
            sys.exit(f"{cell.key} failed.")
        found = cell.result().record
        print(f"{cell.key:56} {found['grade'][0]:6.2f} {found['total']:7.1f} s", flush=True)


VARIANTS = {
    "model": "",
    "control": ", last layer only",
    "ensemble": ", with BERT (mean)",
    "bert": ", BERT at its checkpoint",
}


def rows(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Every method and length of every task: mean score over seeds, seconds and memory of the first."""
    found = []
    for task in given.tasks:
        measure = TABLE[task]
        for name in given.methods:
            method = METHODS[name]
            try:
                rate = chosen(name, task)
            except MissingCell:
                continue  # not run yet
            for length in method.lengths_on(task):
                cells = [SeedJob(method=name, length=length, rate=rate, task=task, seed=seed) for seed in given.seeds]
                results = [cell.result() for cell in cells if cell.key in CELLS]
                if not results:
                    continue
                records = [result.record for result in results]
                first = records[0]
                for variant in first["scores"]:
                    each = [record["scores"][variant] for record in records]
                    low, high = interval(measure, [result.outcomes[variant] for result in results], resamples=500)
                    found.append(
                        {
                            "task": task,
                            "method": name + VARIANTS[variant],
                            "length": length,
                            "rate": rate,
                            "score": float(np.mean([score[measure.primary] for score in each])),
                            "low": low,
                            "high": high,
                            "seeds": len(results),
                            "validation": float(
                                np.mean([r["scores"][variant].get("grade", r["grade"])[0] for r in records])
                            ),
                            "seconds": _seconds(first, variant),
                            "stages": first["seconds"],
                            "alone": first["alone"],
                            "peak": first["peak_bytes"],
                            "trainable": first["trainable"],
                            "kept": first["kept_bytes"],
                            "latency": first["latency"],
                        }
                    )
    return found


def _seconds(result: dict[str, Any], variant: str) -> float:
    """What a variant took: the control trains its own head, BERT none."""
    seconds = result["seconds"]
    shared = sum(value for name, value in seconds.items() if name not in ("head", "control"))
    if variant == "bert":
        return shared - seconds.get("states", 0.0)
    return shared + seconds.get("control" if variant == "control" else "head", 0.0)


def by_validation(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of each task the length that validation prefers, the shorter of equal ones."""
    tasks = dict.fromkeys(row["task"] for row in rows)
    ordered = sorted(rows, key=lambda row: row["length"])
    return {task: max((r for r in ordered if r["task"] == task), key=lambda row: row["validation"]) for task in tasks}


def verdicts(found: list[dict[str, Any]]) -> list[str]:
    """Say what BERTVision reaches of full fine-tuning, and who is above it in equal time."""
    ours = [row for row in found if row["method"] == "bertvision"]
    best = by_validation([row for row in found if row["method"] == "fine-tuning"])
    lines = [
        f"{task}: full fine-tuning, length by validation: {row['length']:g} epochs, {row['score']:.1f} in "
        f"{row['seconds']:.0f} s."
        for task, row in best.items()
    ]
    candidates = {"its length by validation, too": by_validation(ours)}
    for length in sorted({row["length"] for row in ours}):
        candidates[f"{length:g} epochs"] = {row["task"]: row for row in ours if row["length"] == length}
    candidates["0.3 epochs as `bertvision run` does it"] = {
        row["task"]: row for row in found if row["method"] == "bertvision-run"
    }
    for name, rows in candidates.items():
        shares = {
            task: (row["score"] / best[task]["score"], row["seconds"] / best[task]["seconds"], row["length"])
            for task, row in rows.items()
            if task in best
        }
        half, third = (
            sum(score >= 0.99 and seconds <= most for score, seconds, _ in shares.values()) for most in (1 / 2, 1 / 3)
        )
        each = "; ".join(
            f"{task} {score:.1%} in {seconds:.2f}" + f" ({length:g} epochs)" * ("validation" in name)
            for task, (score, seconds, length) in shares.items()
        )
        lines.append(
            f"BERTVision, {name}, has of that score, in that share of its time: {each}. At least 99 % in at most half "
            f"of the time: {half} of {len(shares)}; in a third: {third}."
        )
    everyone = [row for row in found if not row["method"].startswith("bertvision")]
    peers = dict.fromkeys(row["method"] for row in everyone)
    settled = [row for name in peers for row in by_validation([r for r in everyone if r["method"] == name]).values()]
    all_ours = [row for row in found if row["method"] in ("bertvision", "bertvision-run")]
    lines += equal_time(settled, all_ours, "everyone's length by validation", lambda row: row["validation"])
    lines += equal_time(everyone, all_ours, "every run of a peer, our length by validation", lambda r: r["validation"])
    lines += equal_time(everyone, all_ours, "every run of a peer, our longest that fits", lambda row: row["length"])
    untuned = {row["task"]: row["peak"]["head"] for row in ours if row["length"] == 0}
    shares = [
        f"{task} {untuned[task] / max(row['peak'].values()):.2f}" for task, row in best.items() if task in untuned
    ]
    return [
        *lines,
        "Peak memory of the head stage where nothing was fine-tuned before it, of full fine-tuning's: "
        f"{', '.join(shares)}.",
    ]


def equal_time(
    peers: list[dict[str, Any]], ours: list[dict[str, Any]], rule: str, by: Callable[[dict[str, Any]], float]
) -> list[str]:
    """Set runs of peers beside the run of BERTVision that a rule chooses among those that take no longer."""
    lines, above = [], dict.fromkeys((row["task"] for row in ours), True)
    for row in peers:
        mine = [one for one in ours if one["task"] == row["task"]]
        equal = [one for one in mine if one["seconds"] <= row["seconds"]]
        rival = max(equal, key=by, default=None)
        if rival is not None and rival["score"] >= row["score"]:
            continue
        if rival is None:  # too quick for us: it counts where waiting for us would not help, either
            rival = min(mine, key=lambda one: one["seconds"])
            if rival["score"] >= row["score"]:
                continue
        above[row["task"]] = False
        lines.append(
            f"{row['task']}: {row['method']} at {row['length']:g} epochs ({row['score']:.1f}, {row['seconds']:.0f} s) "
            f"over {rival['method']} at {rival['length']:g} ({rival['score']:.1f}, {rival['seconds']:.0f} s)"
        )
    clear = [task for task, is_above in above.items() if is_above]
    return [
        f"At equal time ({rule}) BERTVision is above every peer on {len(clear)} of {len(above)} tasks"
        f"{': ' * bool(clear)}{', '.join(clear)}." + (f" Above it: {'; '.join(lines)}." if lines else "")
    ]


def headline(found: list[dict[str, Any]]) -> list[str]:
    """The table in short: score and seconds of every method at its longest, of fine-tuning where validation says."""
    tasks = list(dict.fromkeys(row["task"] for row in found))
    best = by_validation([row for row in found if row["method"] == "fine-tuning"])
    shown: dict[str, dict[str, dict[str, Any]]] = {"full fine-tuning, length by validation": best}
    for name, method in METHODS.items():
        every = method.lengths + method.longer
        lengths = () if name == "fine-tuning" else every if name == "bertvision" else every[-1:]
        for length in lengths:
            epochs = f", {length:g} epochs" if max(method.lengths) else ""
            mine = [row for row in found if row["method"] == name and row["length"] == length]
            shown[name + epochs] = {row["task"]: row for row in mine}
    lines = ["| score, seconds | " + " | ".join(tasks) + " |", "|---|" + "---:|" * len(tasks)]
    for name, rows in shown.items():
        cells = [f"{rows[task]['score']:.1f}, {rows[task]['seconds']:.0f} s" if task in rows else "" for task in tasks]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def few(row: dict[str, Any], most: int) -> str:
    """Mark a score that comes of fewer seeds than the others."""
    complete = row["seeds"] == most or not METHODS[row["method"].partition(",")[0]].random
    return "" if complete else f" ({row['seeds']} of {most} seeds)"


def report(given: argparse.Namespace) -> None:
    """Write the table, the numbers and the chart of score against seconds."""
    CELLS.pack()
    found = rows(given)
    seeds = "one seed" if len(given.seeds) == 1 else f"{len(given.seeds)} seeds"
    which = "" if given.seeds == SEEDS else f" --seeds {','.join(map(str, given.seeds))}"
    lines = [
        "# BERTVision and its peers",
        "",
        f"`python benchmarks/peers.py --alone{which}`: MiniLM, two cores, at most {ROWS:,} rows of train (a "
        f"tenth of them to choose on), {DEV_ROWS:,} of dev; the same rows, tokens and seeds for all. Mean over {seeds} "
        "with 95 % interval; three learning rates each, chosen on validation with the first seed; seconds, memory and "
        "latency of the first seed, alone on the machine, tuning not counted. `bertvision-run` is what "
        "`bertvision run` does unless told otherwise: nothing tuned, a constant rate; the other rows of BERTVision are "
        "each its own run, whose rate falls to zero. Memory: the peak no file backs, above "
        "imports, of the whole and of the head stage.",
        "",
        "Full fine-tuning, LoRA and BitFit stop at three epochs here, which is too short: longer fine-tuning ties "
        "with or beats our defaults on mrpc, snli and rotten-tomatoes (README, Beside its peers). Read the "
        "statements below as statements about these lengths only.",
        "",
        *headline(found),
        "",
        *(f"- {line}" for line in verdicts(found)),
        "",
    ]
    for task in dict.fromkeys(row["task"] for row in found):
        lines += [f"## {task} ({TABLE[task].primary})", "", f"![Score by seconds](peers-{task}.svg)", ""]
        names = ["method", "epochs", "score", "95 %", "seconds", "of these states, head", "peak MB, head", "trainable"]
        lines.append("| " + " | ".join([*names, "kept MB", "ms / text"]) + " |")
        lines += ["|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"]
        for row in sorted((row for row in found if row["task"] == task), key=lambda row: -row["score"]):
            stages, peak = row["stages"], row["peak"]
            apart = f"{stages.get('states', 0):.0f}, {stages.get('head', 0):.0f}" if "states" in stages else ""
            memory = f"{max(peak.values()) / 1e6:.0f}" + (f", {peak['head'] / 1e6:.0f}" if "head" in peak else "")
            lines.append(
                f"| {row['method']} | {row['length']:g} | {row['score']:.1f}{few(row, len(given.seeds))} "
                f"| {row['low']:.1f} - {row['high']:.1f} "
                f"| {row['seconds']:.0f}{'' if row['alone'] else ' (not alone)'} | {apart} | {memory} "
                f"| {row['trainable']:,} | {row['kept'] / 1e6:.1f} | {1000 * row['latency']:.1f} |"
            )
        lines.append("")
        draw(task, [row for row in found if row["task"] == task])
    write_json(Path("benchmarks/results/peers.json"), {"rows": found, "verdicts": verdicts(found)})
    Path("docs/peers.md").write_text("\n".join(lines))


def draw(task: str, found: list[dict[str, Any]]) -> None:
    """Draw score against seconds, one line for each method; of the variants, the control."""
    drawn = [*METHODS, "bertvision, last layer only"]
    shown = [row for row in found if row["method"] in drawn]
    columns = ("method", "length", "score", "seconds", "low", "high")
    base = alt.Chart(alt.Data(values=[{name: row[name] for name in columns} for row in shown]))
    x = alt.X("seconds", type="quantitative", scale=alt.Scale(type="log", nice=False, padding=12))
    y = alt.Y("score", type="quantitative", scale=alt.Scale(zero=False), title=TABLE[task].primary)
    color = alt.Color("method", type="nominal", sort=drawn, legend=alt.Legend(labelLimit=300))
    bars = base.mark_rule(opacity=0.4).encode(x=x, y=alt.Y("low", type="quantitative"), y2="high", color=color)
    lines, points = base.mark_line().encode(x=x, y=y, color=color), base.mark_point(filled=True)
    chart = alt.layer(bars, lines, points.encode(x=x, y=y, color=color))
    specification = chart.properties(width=560, height=320, title=f"{task}: score by seconds").to_dict()
    Path(f"docs/peers-{task}.svg").write_text(vl_convert.vegalite_to_svg(specification))


def main() -> None:
    """Collect and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    split: Callable[[str], list[str]] = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--data-dir", default="", help="official GLUE files; without it, the registry's")
    parser.add_argument("--tasks", default=TASKS, type=split)
    parser.add_argument("--methods", default=list(METHODS), type=split)
    parser.add_argument("--seeds", default=SEEDS, type=lambda text: [int(each) for each in text.split(",")])
    parser.add_argument("--alone", action="store_true", help="nothing else runs here: seconds and memory count")
    parser.add_argument("--report", action="store_true", help="write the report of what there is, run nothing")
    given = parser.parse_args()
    if not given.report:
        collect(given)
    report(given)


if __name__ == "__main__":
    main()
