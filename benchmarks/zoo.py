"""Every head beside BERT, the controls and the ensembles; the default head tested against each of them.

    python benchmarks/zoo.py sentences --data-dir GLUE [--tasks mrpc,stsb,rte,sst2] [--seeds 0,1,2] [--fractions 0.3,1]
    python benchmarks/zoo.py spans --data-dir SQUAD --checkpoints DIR --stores DIR [--seeds 0,1,2]

Resumable: what is finished is skipped. Writes benchmarks/results/zoo-*.json and docs/zoo-*.md after every cell.
DIR of --checkpoints holds fine-tuned backbones, named by their epochs; --stores takes about 7 GB for each.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from bertvision import heads, pipeline
from bertvision.config import Experiment, Optim, States, make
from bertvision.files import write_json
from bertvision.runs import Run
from bertvision.statistics import Gap, Pair, compare, holm, interval
from bertvision.tasks import TASKS

# The published sentence heads read 26 channels of BERT-large: 25 layers and the pooled [CLS].
PAPER_SENTENCES = {
    "learned:pooled=true": "Tenney small",
    "learned-adapter-386-skip:pooled=true": "adapter pooler Tenney",
    "mean-adapter-386-skip:pooled=true": "adapter pooler average",
    "xception-small:pooled=true": "Xception abbreviated",
    "xception-small-skip:pooled=true": "Xception abbreviated, CLS residual",
    "adapter-pooler": "AdapterPooler",
    "adapter": "adapter 64",
}
SLOW_SENTENCES = {"xception:pooled=true": "Xception full"}
OWN_SENTENCES = [
    "adapter:gather=max",
    "adapter:gather=mean+max",
    "adapter:gather=max,size=128",
    "attention:gather=max",
]
OWN_SPANS = ["attention", "attention-skip"]
LIGHT_SPANS = [
    "mean",
    "learned",
    "adapter",
    "adapter-skip",
    "adapter-independent",
    "adapter-independent-skip",
    "learned-adapter-386-skip",
    "mean-adapter-386-skip",
]
HEAVY_SPANS = [
    "adapter-386",
    "adapter-386-skip",
    "adapter-386-independent",
    "adapter-386-independent-skip",
    "adapter-386-skip-learned",
    "adapter-pooler",
]
CNN_SPANS = [name for name in heads.HEADS if "cnn" in name or "ception" in name]
CNN_QUESTIONS = 1000
LIMITS = {"sst2": 10_000}
WAYS = ["max", "mean", "product"]
BERT, DECAYED = "BERT, same checkpoint", "BERT, decayed to zero"
LAST, ONLY = "control: last, retrained", "control: default head, last layer only"
CHOSEN = "paper head that validation chooses"

Cell = dict[str, list[Run]]
"""The runs of every model, one for each seed."""


def train(experiment: Experiment, fraction: float, root: Path, default: str) -> dict[str, Run]:
    """Train and score an experiment's heads, BERT, and the ensembles of BERT with the default head."""
    prepared = pipeline.prepare(experiment)
    point = pipeline.open_point(prepared, pipeline.finetune(prepared, root), fraction)
    trained = {run.name: run for run in pipeline.train_heads(prepared, point)}
    bert = pipeline.bert_run(prepared, point)
    found = {BERT: bert} | {_control(name, default): run for name, run in trained.items()}
    if default in trained:
        for how in WAYS:
            found[f"BERT + default ({how})"] = pipeline.ensemble(
                prepared, point.directory, [bert, trained[default]], how
            )
    return found


def _control(name: str, default: str) -> str:
    return {"last": LAST, heads.last_layer_only(default): ONLY}.get(name, name)


def add(cell: Cell, found: dict[str, Run]) -> None:
    """Append a seed's runs."""
    for name, run in found.items():
        cell.setdefault(name, []).append(run)


def scores(columns: dict[str, Cell]) -> dict[str, dict[str, Any]]:
    """Mean, interval and seeds of every model in every column."""
    found: dict[str, dict[str, Any]] = {}
    for column, cell in columns.items():
        for name, runs in cell.items():
            task = TASKS[runs[0].experiment["task"]["name"]]
            low, high = interval(task, [run.outcomes() for run in runs], resamples=500)
            found.setdefault(name, {})[column] = {
                "mean": float(np.mean([run.primary for run in runs])),
                "low": low,
                "high": high,
                "seeds": [run.primary for run in runs],
                "validation": float(np.mean([run.grade[0] for run in runs])),
                "parameters": runs[0].metrics["parameters"],
                "scores": runs[0].metrics["score"],
            }
    return found


def table(found: dict[str, dict[str, Any]], columns: Sequence[str], default: str, papers: dict[str, str]) -> list[str]:
    """Show scores, best first; models that miss a column come last."""
    lines = ["| model | parameters | " + " | ".join(columns) + " | mean | validation |"]
    lines.append("|---|" + "---:|" * (len(columns) + 3))

    def mean(name: str, key: str = "mean") -> float:
        return float(np.mean([found[name][column][key] for column in columns if column in found[name]]))

    for name in sorted(found, key=lambda name: (len(found[name]) < len(columns), -mean(name))):
        cells = []
        for column in columns:
            cell = found[name].get(column)
            seeds = f", {len(cell['seeds'])} seed" if cell and len(cell["seeds"]) == 1 else ""
            cells.append(f"{cell['mean']:.1f} ({cell['low']:.1f} - {cell['high']:.1f}{seeds})" if cell else "")
        shown = f"**{name}** (default)" if name == default else f"{name} ({papers[name]})" if name in papers else name
        parameters = next(iter(found[name].values()))["parameters"]
        complete = len(found[name]) == len(columns)
        means = [f"{mean(name):.2f}", f"{mean(name, 'validation'):.2f}"] if complete else ["", ""]
        lines.append(f"| {shown} | {parameters:,} | " + " | ".join([*cells, *means]) + " |")
    return lines


def against(rival: str, ours: str, cells: Sequence[Cell]) -> Gap:
    """Test the model `ours` against a rival over these cells."""
    pairs = []
    for cell in cells:
        seeds = min(len(cell[rival]), len(cell[ours]))
        task = TASKS[cell[ours][0].experiment["task"]["name"]]
        first, second = ([run.outcomes() for run in cell[name][:seeds]] for name in (rival, ours))
        pairs.append(Pair(task, first, second))
    return compare(pairs, resamples=2000)


def tests(rivals: Sequence[str], ours: str, cells: Sequence[Cell]) -> tuple[list[str], dict[str, Any]]:
    """The table of the default head against each rival, p-values corrected over all of them (Holm)."""
    rivals = [rival for rival in rivals if all(rival in cell for cell in cells)]
    gaps = {rival: against(rival, ours, cells) for rival in rivals}
    corrected = holm([gap.p for gap in gaps.values()])
    lines = ["| against | difference | 95 % | p | p, corrected |", "|---|---:|---:|---:|---:|"]
    for (rival, gap), p in zip(gaps.items(), corrected, strict=True):
        lines.append(f"| {rival} | {gap.mean:+.2f} | {gap.low:+.2f} to {gap.high:+.2f} | {gap.p:.4f} | {p:.4f} |")
    return lines, {
        rival: asdict(gap) | {"corrected": p} for (rival, gap), p in zip(gaps.items(), corrected, strict=True)
    }


def sentences(given: argparse.Namespace) -> None:
    """Sentence tasks, fine-tuned here."""
    default = heads.canonical(heads.DEFAULTS[False][-1])
    found: dict[tuple[str, float], Cell] = {}
    everything = [*dict.fromkeys(map(heads.canonical, [*OWN_SENTENCES, default]))]
    for seed in given.seeds:
        for task in given.tasks:
            base = make(
                task=task,
                data_dir=given.data_dir,
                limit=LIMITS.get(task, 0),
                fractions=given.fractions,
                seed=seed,
                controls=False,
            )
            for fraction in given.fractions:
                cell = found.setdefault((task, fraction), {})
                ours = replace(base, heads=[*everything, "last", heads.last_layer_only(default)])
                add(cell, train(ours, fraction, given.runs, default))
                theirs = train(replace(base, heads=list(PAPER_SENTENCES)), fraction, given.runs, default)
                add(cell, {name: run for name, run in theirs.items() if name != BERT})
                chosen = max((theirs[heads.canonical(name)] for name in PAPER_SENTENCES), key=lambda run: run.grade)
                add(cell, {CHOSEN: chosen})
                if given.decayed:
                    decayed = replace(base, fractions=[fraction], finetune=Optim(schedule="linear"), heads=[])
                    prepared = pipeline.prepare(decayed)
                    point = pipeline.open_point(prepared, pipeline.finetune(prepared, given.runs), fraction)
                    add(cell, {DECAYED: pipeline.bert_run(prepared, point)})
                if given.slow and seed == given.seeds[0]:
                    slow = train(replace(base, heads=list(SLOW_SENTENCES)), fraction, given.runs, default)
                    add(cell, {name: run for name, run in slow.items() if name != BERT})
                print(task, fraction, seed, flush=True)
                report_sentences(found, given, default)


def report_sentences(found: dict[tuple[str, float], Cell], given: argparse.Namespace, default: str) -> None:
    """Write what there is."""
    papers = {heads.canonical(spec): paper for spec, paper in (PAPER_SENTENCES | SLOW_SENTENCES).items()}
    lines = [
        "# Sentence heads, side by side",
        "",
        f"`python benchmarks/zoo.py sentences --data-dir GLUE`: MiniLM, {len(given.seeds)} seeds of fine-tuning and "
        "heads (Xception full: one), mean score on dev and 95 % interval (bootstrap over seeds and examples). "
        "Validation, a tenth of train held out before fine-tuning, chose every head's epoch and the default head. "
        "sst2: 10,000 rows of train. mrpc, rte, sst2: accuracy; stsb: Pearson x 100, where every way to combine is the "
        "average.",
        "",
    ]
    results: dict[str, Any] = {"default": default, "seeds": given.seeds, "scores": {}, "tests": {}}
    for fraction in given.fractions:
        columns = {task: found[task, fraction] for task in given.tasks if (task, fraction) in found}
        if not columns:
            continue
        rows = scores(columns)
        rivals = [BERT, DECAYED, LAST, ONLY, CHOSEN]
        shown, tested = tests(rivals, default, list(columns.values()))
        lines += [f"## Fine-tuned for {fraction:g} epoch", "", *table(rows, list(columns), default, papers), ""]
        lines += [
            f"The default head against each, pooled over {len(columns)} tasks (bootstrap stratified by task, paired by "
            "seed and example, 2,000 resamples, two-sided):",
            "",
            *shown,
            "",
        ]
        results["scores"][f"{fraction:g}"], results["tests"][f"{fraction:g}"] = rows, tested
    write_json(given.json or Path("benchmarks/results/zoo-sentences.json"), results)
    (given.page or Path("docs/zoo-sentences.md")).write_text("\n".join(lines))


def spans(given: argparse.Namespace) -> None:
    """SQuAD 2.0 on backbones fine-tuned elsewhere."""
    default = heads.canonical(heads.DEFAULTS[True][-1])
    places = sorted((path for path in given.checkpoints.iterdir() if path.is_dir()), key=lambda path: float(path.name))
    found: dict[str, Cell] = {}
    parts: dict[str, Cell] = {}
    light = [*dict.fromkeys([*OWN_SPANS, *LIGHT_SPANS, default]), "last", heads.last_layer_only(default)]

    def settings(path: Path, seed: int, **more: Any) -> Experiment:
        states = States(directory=str(given.stores / path.name / ("part" if more else "all")))
        base = make(task="squad2", data_dir=given.data_dir, backbone=str(path), fractions=[0.0], seed=seed, **more)
        optim = replace(base.train, epochs=given.epochs)
        return replace(base, states=states, activations="store", controls=False, train=optim)

    def everything(path: Path, seed: int, specs: Sequence[str], cell: Cell, **more: Any) -> None:
        experiment = replace(settings(path, seed, **more), heads=list(specs))
        list(pipeline.extract(experiment, given.runs, ["train", "validation", "dev"]))
        trained = train(experiment, 0.0, given.runs, default)
        add(cell, {name: run for name, run in trained.items() if name != BERT or default in specs})
        print(path.name, seed, len(specs), more, flush=True)
        report_spans(found, parts, given, default)

    for seed in given.seeds:
        for path in places:
            everything(path, seed, light, found.setdefault(path.name, {}))
    for path in places if given.slow else []:
        part = parts.setdefault(path.name, {})
        everything(path, given.seeds[0], [*CNN_SPANS, default, "last"], part, limit=CNN_QUESTIONS)
    for path in places if given.slow else []:
        for spec in HEAVY_SPANS:  # one by one: each takes minutes, and a kill costs no more
            everything(path, given.seeds[0], [spec], found[path.name])


def report_spans(found: dict[str, Cell], parts: dict[str, Cell], given: argparse.Namespace, default: str) -> None:
    """Write what there is."""
    papers = {name: row.paper for name, row in heads.HEADS.items() if row.paper}
    lines = [
        "# Span heads, side by side",
        "",
        "`python benchmarks/zoo.py spans --data-dir SQUAD --checkpoints DIR --stores DIR`: MiniLM fine-tuned on "
        "SQuAD 2.0 (33 articles) for the epochs that head the columns, **one seed of fine-tuning**; "
        f"{len(given.seeds)} seeds of heads (one where marked), {given.epochs:g} epoch over all of its train questions "
        "from an int8 store. F1 on 2,724 dev questions of other articles, 95 % interval (bootstrap over head seeds and "
        "questions). The no-answer threshold of every row, BERT's too, comes from validation (1,198 questions of yet "
        "other articles), as do the epoch and the default head.",
        "",
    ]
    results: dict[str, Any] = {"default": default, "seeds": given.seeds, "epochs": given.epochs, "tests": {}}
    results["scores"] = rows = scores(found)
    lines += [*table(rows, list(found), default, papers), "", "## The default head against the others", ""]
    for name, cell in found.items():
        if default not in cell:
            continue
        shown, tested = tests([BERT, LAST, ONLY], default, [cell])
        ensembles = {key: float(np.mean([run.grade[0] for run in cell[key]])) for key in cell if "default (" in key}
        best = max(ensembles, key=lambda key: ensembles[key])
        gap = against(default, best, [cell])
        results["tests"][name] = {"default": tested, "ensemble": {"name": best} | asdict(gap)}
        lines += [f"After {name} epochs (bootstrap paired by head seed and question, two-sided):", "", *shown, ""]
        lines += [
            f"Of the ensembles validation prefers {best}: {gap.mean:+.2f} over the default head "
            f"({gap.low:+.2f} to {gap.high:+.2f}, p {gap.p:.4f}).",
            "",
        ]
    if parts:
        results["part"] = {"questions": CNN_QUESTIONS, "scores": scores(parts)}
        lines += [
            f"## The CNN family, on {CNN_QUESTIONS:,} questions of train",
            "",
            "One head seed; the default head and the retrained last layer on the same part beside them.",
            "",
            *table(results["part"]["scores"], list(parts), default, papers),
            "",
        ]
    write_json(given.json or Path("benchmarks/results/zoo-spans.json"), results)
    (given.page or Path("docs/zoo-spans.md")).write_text("\n".join(lines))


def main() -> None:
    """Collect and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["sentences", "spans"])
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--tasks", default="mrpc,stsb,rte,sst2", type=lambda text: text.split(","))
    parser.add_argument("--seeds", default="0,1,2", type=lambda text: [int(each) for each in text.split(",")])
    parser.add_argument("--fractions", default="0.3,1", type=lambda text: [float(each) for each in text.split(",")])
    parser.add_argument("--checkpoints", type=Path)
    parser.add_argument("--stores", type=Path, default=Path("runs/zoo-stores"))
    parser.add_argument("--epochs", type=float, default=1.0, help="of span heads")
    parser.add_argument("--no-slow", dest="slow", action="store_false", help="leave out what takes hours")
    parser.add_argument("--no-decayed", dest="decayed", action="store_false")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    {"sentences": sentences, "spans": spans}[given.kind](given)


if __name__ == "__main__":
    main()
