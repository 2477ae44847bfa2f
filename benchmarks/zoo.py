"""Every sentence head beside BERT, the controls and the ensembles; the default head against them, pooled over tasks.

    python benchmarks/zoo.py --data-dir GLUE [--tasks mrpc,stsb,rte,sst2] [--seeds 0,1,2] [--fractions 0.3,1]

Resumable: what is finished is skipped. Writes benchmarks/results/zoo.json and docs/zoo.md.
"""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bertvision import heads, pipeline
from bertvision.config import Experiment, Optim, make
from bertvision.runs import Run
from bertvision.tasks import TASKS

# The published sentence heads read 26 channels of BERT-large: 25 layers and the pooled [CLS].
PAPER = {
    "learned:pooled=true": "Tenney small",
    "learned-adapter-386-skip:pooled=true": "adapter pooler Tenney",
    "mean-adapter-386-skip:pooled=true": "adapter pooler average",
    "xception-small:pooled=true": "Xception abbreviated",
    "xception-small-skip:pooled=true": "Xception abbreviated, CLS residual",
    "xception:pooled=true": "Xception full",
    "adapter-pooler": "AdapterPooler",
    "adapter": "adapter 64",
}
LIMITS = {"sst2": 10_000}
DEFAULT = heads.DEFAULTS[False][-1]
CONTROLS = {"last": "control: last, retrained", heads.last_layer_only(DEFAULT): "control: default, last layer only"}
WAYS = ["max", "mean", "product"]
RESAMPLES = 2000


def collect(given: argparse.Namespace) -> dict[tuple[str, float], dict[str, list[Run]]]:
    """Run what is missing; return the runs of every model by task and fraction, one for each seed."""
    found: dict[tuple[str, float], dict[str, list[Run]]] = {}
    for seed in given.seeds:
        for task in given.tasks:
            base = make(
                task=task,
                data_dir=given.data_dir,
                limit=LIMITS.get(task, 0),
                fractions=given.fractions,
                seed=seed,
                heads=[DEFAULT],
                ensembles=WAYS,
            )
            for fraction in given.fractions:
                here = found.setdefault((task, fraction), {})
                for name, run in models(base, fraction, given):
                    here.setdefault(name, []).append(run)
                print(task, fraction, seed, flush=True)
    return found


def models(base: Experiment, fraction: float, given: argparse.Namespace) -> Sequence[tuple[str, Run]]:
    """Train and score every model of a cell."""
    ours = pipeline.run(replace(base, read_at=[fraction]), root=given.runs)
    runs = [run for run in ours.runs if run.experiment["fraction"] == fraction]
    named = []
    for run in runs:
        name = {"bert": "BERT, same checkpoint", "control": CONTROLS.get(run.name, run.name)}.get(run.kind, run.name)
        named.append((run.name if run.kind == "ensemble" else name, run))
    theirs = replace(base, read_at=[fraction], heads=list(PAPER), controls=False, ensembles=[])
    named += [(run.name, run) for run in pipeline.run(theirs, root=given.runs).runs if run.kind == "head"]
    decayed = replace(base, fractions=[fraction], read_at=[], finetune=Optim(schedule="linear"))
    prepared = pipeline.prepare(decayed)
    tuned = pipeline.finetune(prepared, given.runs)
    named.append(("BERT, decayed to zero", pipeline.bert_run(prepared, pipeline.open_point(prepared, tuned, fraction))))
    return named


def interval(task: str, runs: list[Run], random: np.random.Generator) -> tuple[float, float]:
    """95 % of the mean score, resampling seeds and examples."""
    each = TASKS[task]
    outcomes = [run.outcomes() for run in runs]
    draws = []
    for _ in range(RESAMPLES // 4):
        chosen = random.integers(0, len(runs), len(runs))
        rows = random.integers(0, len(outcomes[0]), len(outcomes[0]))
        draws.append(np.mean([each.summarize(outcomes[seed][rows])[each.primary] for seed in chosen]))
    low, high = np.percentile(draws, [2.5, 97.5])
    return float(low), float(high)


def pooled(
    found: dict[tuple[str, float], dict[str, list[Run]]], fraction: float, one: str, other: str
) -> dict[str, float]:
    """Mean difference of `one` to `other` over tasks: stratified by task, paired by seed and example."""
    tasks = [task for task, at in found if at == fraction]
    random = np.random.default_rng(0)
    pairs = {
        task: [
            (a.outcomes(), b.outcomes())
            for a, b in zip(found[task, fraction][one], found[task, fraction][other], strict=True)
        ]
        for task in tasks
    }

    def gap(task: str, seeds: Sequence[int], rows: np.ndarray | slice) -> float:
        each = TASKS[task]
        gaps = [
            each.summarize(pairs[task][seed][0][rows])[each.primary]
            - each.summarize(pairs[task][seed][1][rows])[each.primary]
            for seed in seeds
        ]
        return float(np.mean(gaps))

    draws = []
    for _ in range(RESAMPLES):
        total = 0.0
        for task in tasks:
            seeds, size = len(pairs[task]), len(pairs[task][0][0])
            total += gap(task, random.integers(0, seeds, seeds).tolist(), random.integers(0, size, size))
        draws.append(total / len(tasks))
    low, high = np.percentile(draws, [2.5, 97.5])
    tail = min(np.mean(np.array(draws) <= 0), np.mean(np.array(draws) >= 0))
    mean = float(np.mean([gap(task, range(len(pairs[task])), slice(None)) for task in tasks]))
    return {"difference": mean, "low": float(low), "high": float(high), "p": max(2 * float(tail), 1 / RESAMPLES)}


def best_paper(found: dict[tuple[str, float], dict[str, list[Run]]]) -> None:
    """Add the paper head that validation would choose, seed by seed."""
    for models_ in found.values():
        seeds = len(models_[heads.canonical(DEFAULT)])
        names = [heads.canonical(name) for name in PAPER]
        chosen = [max((models_[name][seed] for name in names), key=lambda run: run.grade) for seed in range(seeds)]
        models_["paper head that validation chooses"] = chosen


def report(found: dict[tuple[str, float], dict[str, list[Run]]], given: argparse.Namespace) -> None:
    """Write the tables."""
    random = np.random.default_rng(0)
    ours = heads.canonical(DEFAULT)
    lines = [
        "# Sentence heads, side by side",
        "",
        f"`python benchmarks/zoo.py --data-dir GLUE`: MiniLM, {len(given.seeds)} seeds of fine-tuning and heads, "
        "mean score on dev and 95 % interval (bootstrap over seeds and examples). Validation is a tenth of train, held "
        "out before fine-tuning; it chose every head's epoch. sst2: 10,000 rows of train. mrpc, rte, sst2: accuracy; "
        "stsb: Pearson x 100.",
        "",
    ]
    results: dict[str, Any] = {"default": ours, "seeds": given.seeds, "scores": {}, "pooled": {}}
    for fraction in given.fractions:
        tasks = [task for task in given.tasks if (task, fraction) in found]
        names = list(found[tasks[0], fraction])
        lines += [f"## Fine-tuned for {fraction:g} epoch", ""]
        lines += ["| model | parameters | " + " | ".join(tasks) + " | mean |", "|---|" + "---:|" * (len(tasks) + 2)]
        scores: dict[str, dict[str, Any]] = {}
        for name in names:
            scores[name] = {}
            for task in tasks:
                runs = found[task, fraction][name]
                low, high = interval(task, runs, random)
                mean = float(np.mean([run.primary for run in runs]))
                each = [run.primary for run in runs]
                scores[name][task] = {"mean": mean, "low": low, "high": high, "seeds": each}
        for name in sorted(names, key=lambda name: -np.mean([cell["mean"] for cell in scores[name].values()])):
            cells = [f"{c['mean']:.1f} ({c['low']:.1f} - {c['high']:.1f})" for c in scores[name].values()]
            mean = np.mean([cell["mean"] for cell in scores[name].values()])
            count = found[tasks[0], fraction][name][0].metrics["parameters"]
            shown = f"**{name}** (default)" if name == ours else name + _paper_name(name)
            lines.append(f"| {shown} | {count:,} | " + " | ".join(cells) + f" | {mean:.2f} |")
        rivals = ["BERT, same checkpoint", "BERT, decayed to zero", *CONTROLS.values()]
        rivals.append("paper head that validation chooses")
        tests = {rival: pooled(found, fraction, ours, rival) for rival in rivals}
        lines += [
            "",
            f"The default head against each, pooled over {len(tasks)} tasks (stratified paired bootstrap over seeds "
            f"and examples, {RESAMPLES:,} resamples, two-sided):",
            "",
            "| against | difference | 95 % | p |",
            "|---|---:|---:|---:|",
        ]
        for rival, test in tests.items():
            p = f"< {1 / RESAMPLES:g}" if math.isclose(test["p"], 1 / RESAMPLES) else f"{test['p']:.3f}"
            lines.append(f"| {rival} | {test['difference']:+.2f} | {test['low']:+.2f} to {test['high']:+.2f} | {p} |")
        lines.append("")
        results["scores"][f"{fraction:g}"] = scores
        results["pooled"][f"{fraction:g}"] = tests
    given.json.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_text(json.dumps(results, indent=1) + "\n")
    given.page.write_text("\n".join(lines))


def _paper_name(name: str) -> str:
    known = {heads.canonical(spec): paper for spec, paper in PAPER.items()}
    return f" ({known[name]})" if name in known else ""


def main() -> None:
    """Collect and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--tasks", default="mrpc,stsb,rte,sst2", type=lambda text: text.split(","))
    parser.add_argument("--seeds", default="0,1,2", type=lambda text: [int(each) for each in text.split(",")])
    parser.add_argument("--fractions", default="0.3,1", type=lambda text: [float(each) for each in text.split(",")])
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/zoo.json"))
    parser.add_argument("--page", type=Path, default=Path("docs/zoo.md"))
    given = parser.parse_args()
    found = collect(given)
    best_paper(found)
    report(found, given)


if __name__ == "__main__":
    main()
