"""Compare every head with BERT, the controls and the ensembles, and test the default head against each of them.

    python benchmarks/zoo.py sentences --data-dir GLUE [--stages main,single,default,decayed,deep,xception]
    python benchmarks/zoo.py spans --data-dir SQUAD --checkpoints DIR --stores DIR [--stages main,heavy,cnn,deep]
    python benchmarks/zoo.py sentences|spans --report

This takes hours. Finished cells are skipped, so it can be interrupted. At the end, the outcomes of all answers are
packed into benchmarks/results/zoo-*.parquet, and benchmarks/results/zoo-*.json and docs/zoo-*.md are written, which
takes minutes; --report does only that.
DIR of --checkpoints holds fine-tuned encoders, named by their epochs; --stores takes about 7 GB for each.
"""

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from cells import Cells
from scored import Scored, kept, read

from bertvision import heads, pipeline
from bertvision.files import write_json
from bertvision.heads import HeadConfig
from bertvision.lab import extraction
from bertvision.pipeline.experiment import Experiment, StoreConfig, TrainingConfig, make
from bertvision.runs import Run
from bertvision.statistics import PairedOutcomes, ScoreDifference, compare, holm, interval
from bertvision.tasks import TASKS

# The published sentence heads read 26 channels of BERT-large: 25 layers and the pooled [CLS].
PAPER_SENTENCES = {
    "main": {
        "learned:pooler_output=true": "Tenney small",
        "learned-adapter-386-skip:pooler_output=true": "adapter pooler Tenney",
        "mean-adapter-386-skip:pooler_output=true": "adapter pooler average",
        "adapter-pooler": "AdapterPooler",
        "adapter": "adapter 64",
    },
    "deep": {
        "xception-small:pooler_output=true": "Xception abbreviated",
        "xception-small-skip:pooler_output=true": "Xception abbreviated, CLS residual",
    },
    "xception": {"xception:pooler_output=true": "Xception full"},
}
OWN_SENTENCES = [
    "adapter:token_pooling=max+compare",
    "adapter:token_pooling=max",
    "adapter:token_pooling=mean+max",
    "adapter:token_pooling=max,size=128",
    "attention:token_pooling=max",
]
MAIN_SPANS = [
    "attention",
    "attention-skip",
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
CNN_SPANS = [name for name in heads.HEADS if "cnn" in name]
DEEP_SPANS = [name for name in heads.HEADS if "ception" in name and "adapter" in name]  # the others are for sentences
# Convolutions over the hidden states of a window take up to 50 times as long as the encoder.
PARTS = {"cnn": {"limit": 150, "limit_dev": 200}, "deep": {"limit": 60, "limit_dev": 60}}
LIMITS = {"sst2": 10_000}
# Epochs of sentence heads, 5 where not given. The full Xception is as large as the encoder, and slow.
EPOCHS = {"xception": 1.0}
COMBINATIONS = ["max", "mean", "product"]
BERT, DECAYED = "BERT, same checkpoint", "BERT, decayed to zero"
LAST, ONLY = "control: last, retrained", "control: default head, last layer only"
OURS = "**default head**"
WITH_BERT = {how: f"BERT + default ({how})" for how in COMBINATIONS}
CHOSEN = "paper head that validation chooses"
SEEDS = {"sentences": [0, 1, 2], "spans": [0, 1]}

ScoresBySeed = dict[str, list[Scored]]
"""The scores of every model, one for each seed."""


def train(experiment: Experiment, fraction: float, root: Path, default: str = "") -> dict[str, Run]:
    """Train and score an experiment's heads, BERT, and if `default` is given, ensembles of BERT with that head."""
    data = pipeline.prepare(experiment)
    checkpoint = pipeline.open_checkpoint(data, pipeline.finetune(data, root), fraction)
    bert, *runs = pipeline.checkpoint_runs(data, checkpoint)
    trained = {run.name: run for run in runs}
    found = {BERT: bert} | {row_name(name, default): run for name, run in trained.items()}
    if default in trained:
        found[OURS] = trained[default]
        for how in COMBINATIONS:
            found[WITH_BERT[how]] = pipeline.ensemble(data, checkpoint.directory, [bert, trained[default]], how)
    return found


def canonical(spec: str) -> str:
    """Return the canonical specification of a head."""
    return str(HeadConfig.parse(spec))


def last_layer_only(spec: str) -> str:
    """Return the specification of a head's control: the same head on the last layer alone."""
    return str(HeadConfig.parse(spec).last_layer_only())


def default_of(task: str) -> str:
    """Return the default head of a task."""
    return str(heads.default_head(TASKS[task].example_kind))


def single_of(task: str) -> str:
    """Return a single member of the default head, of the usual size, on all layers of cross-encoded texts."""
    default = heads.default_head(TASKS[task].example_kind)
    options = {key: value for key, value in default.given if key not in ("members", "size", "layers", "encoding")}
    return str(HeadConfig(default.name, **options))


def row_name(spec: str, default: str = "") -> str:
    """Return the name of a head in the tables."""
    name = canonical(spec)
    only = last_layer_only(default) if default else None
    return {"bert-head": LAST, only: ONLY}.get(name, name)


def add(cell: ScoresBySeed, found: dict[str, Scored]) -> None:
    """Append a seed's models."""
    for name, each in found.items():
        cell.setdefault(name, []).append(each)


def scores(columns: dict[str, ScoresBySeed]) -> dict[str, dict[str, Any]]:
    """Mean, interval and seeds of every model in every column."""
    found: dict[str, dict[str, Any]] = {}
    for column, cell in columns.items():
        for name, seeds in cell.items():
            low, high = interval(TASKS[seeds[0].task], [each.outcomes for each in seeds], resamples=500)
            found.setdefault(name, {})[column] = {
                "mean": float(np.mean([each.primary for each in seeds])),
                "low": low,
                "high": high,
                "seeds": [each.primary for each in seeds],
                "validation": float(np.mean([each.validation for each in seeds])),
                "parameters": seeds[0].parameters,
                "scores": seeds[0].score,
            }
    return found


def table(found: dict[str, dict[str, Any]], columns: Sequence[str], papers: dict[str, str], most: int) -> list[str]:
    """Show scores, best first; models that miss a column come last. Fewer seeds than `most` are marked."""
    lines = ["| model | parameters | " + " | ".join(columns) + " | mean | validation |"]
    lines.append("|---|" + "---:|" * (len(columns) + 3))

    def mean(name: str, key: str = "mean") -> float:
        return float(np.mean([found[name][column][key] for column in columns if column in found[name]]))

    for name in sorted(found, key=lambda name: (len(found[name]) < len(columns), -mean(name))):
        cells = []
        for column in columns:
            cell = found[name].get(column)
            count = len(cell["seeds"]) if cell else 0
            seeds = f", {count} seed{'s' * (count > 1)}" if count < most else ""
            cells.append(f"{cell['mean']:.1f} ({cell['low']:.1f} - {cell['high']:.1f}{seeds})" if cell else "")
        shown = f"{name} ({papers[name]})" if name in papers else name
        parameters = next(iter(found[name].values()))["parameters"]
        complete = len(found[name]) == len(columns)
        means = [f"{mean(name):.2f}", f"{mean(name, 'validation'):.2f}"] if complete else ["", ""]
        lines.append(f"| {shown} | {parameters:,} | " + " | ".join([*cells, *means]) + " |")
    return lines


def against(rival: str, ours: str, cells: Sequence[ScoresBySeed]) -> ScoreDifference:
    """Test the model `ours` against a rival over these cells."""
    pairs = []
    for cell in cells:
        seeds = min(len(cell[rival]), len(cell[ours]))
        first, second = ([each.outcomes for each in cell[name][:seeds]] for name in (rival, ours))
        pairs.append(PairedOutcomes(TASKS[cell[ours][0].task], first, second))
    return compare(pairs, resamples=2000)


def tests(rivals: Sequence[str], cells: Sequence[ScoresBySeed]) -> tuple[list[str], dict[str, Any]]:
    """The table of the default head against each rival, p-values corrected over all of them (Holm)."""
    rivals = [rival for rival in rivals if all(rival in cell for cell in cells)]
    gaps = {rival: against(rival, OURS, cells) for rival in rivals}
    corrected = holm([gap.p for gap in gaps.values()])
    lines = ["| against | difference | 95 % | p | p, corrected |", "|---|---:|---:|---:|---:|"]
    for (rival, gap), p in zip(gaps.items(), corrected, strict=True):
        lines.append(f"| {rival} | {gap.mean:+.2f} | {gap.low:+.2f} to {gap.high:+.2f} | {gap.p:.4f} | {p:.4f} |")
    return lines, {
        rival: asdict(gap) | {"corrected": p} for (rival, gap), p in zip(gaps.items(), corrected, strict=True)
    }


def sentences(given: argparse.Namespace) -> None:
    """Sentence tasks, fine-tuned here."""
    finished = Cells.of("zoo-sentences")
    found: dict[tuple[str, float], ScoresBySeed] = {}

    def specs(stage: str, task: str) -> list[str]:
        if stage == "default":  # a stage of its own, so that a new default does not repeat the others
            return [default_of(task), "bert-head", last_layer_only(default_of(task))]
        if stage == "single":
            return [single_of(task)]
        return [*(OWN_SENTENCES if stage == "main" else []), *PAPER_SENTENCES.get(stage, [])]

    def make_cell(stage: str, task: str, fraction: float, seed: int) -> dict[str, Run]:
        base = make(
            task=task,
            data_dir=given.data_dir,
            limit=LIMITS.get(task, 0),
            fractions=given.fractions,
            auxiliary_head="bert-head",
            seed=seed,
            controls=False,
        )
        if stage == "default":
            return train(replace(base, heads=specs(stage, task)), fraction, given.runs, default_of(task))
        if stage != "decayed":
            optim = replace(base.train, learning_rate=1e-3, epochs=EPOCHS.get(stage, 5.0))
            return train(replace(base, heads=specs(stage, task), train=optim), fraction, given.runs)
        decayed = replace(
            base,
            fractions=[fraction],
            finetune=TrainingConfig(schedule="linear", warmup_epochs=0.1 * fraction),
            heads=[],
        )
        data = pipeline.prepare(decayed)
        checkpoint = pipeline.open_checkpoint(data, pipeline.finetune(data, given.runs), fraction)
        return {DECAYED: pipeline.bert_run(data, checkpoint)}

    stages = ["main", "single", "default", "decayed", "deep", "xception"]
    for stage in stages:
        for seed, task, fraction in itertools.product(given.seeds, given.tasks, given.fractions):
            key = f"{stage}/{task}/{fraction:g}/{seed}"
            if stage == "single" and single_of(task) in map(canonical, OWN_SENTENCES):
                continue
            names = {"default": [BERT, OURS, LAST, ONLY, *WITH_BERT.values()], "decayed": [DECAYED]}.get(stage)
            names = names or [row_name(spec) for spec in specs(stage, task)]
            if not (old := key in finished) and (given.report or stage not in (given.stages or stages)):
                continue
            make_this = partial(make_cell, stage, task, fraction, seed)
            made = read(finished, key) if given.report else kept(finished, key, names, make_this)
            add(found.setdefault((task, fraction), {}), {name: made[name] for name in names if name in made})
            if not old:
                print(stage, task, fraction, seed, flush=True)
    finished.pack()
    report_sentences(found, given)


def choose_paper(cell: ScoresBySeed) -> list[Scored]:
    """Return, seed by seed, the published head that validation prefers."""
    papers = [canonical(spec) for stage in PAPER_SENTENCES.values() for spec in stage]
    seeds = len(cell[BERT])
    complete = [cell[name] for name in papers if len(cell.get(name, [])) == seeds]
    return [max((each[seed] for each in complete), key=lambda scored: scored.validation) for seed in range(seeds)]


def report_sentences(found: dict[tuple[str, float], ScoresBySeed], given: argparse.Namespace) -> None:
    """Write the results of the finished cells."""
    papers = {canonical(spec): paper for stage in PAPER_SENTENCES.values() for spec, paper in stage.items()}
    lines = [
        "# Sentence heads, side by side",
        "",
        f"`python benchmarks/zoo.py sentences --data-dir GLUE`: MiniLM, {len(given.seeds)} seeds of fine-tuning and "
        "heads (fewer where marked), mean score on dev and 95 % interval (bootstrap over seeds and examples). "
        "Validation, a tenth of train held out before fine-tuning, chose every head's epoch; rows of train, the "
        "default head. "
        f"The default head is `{default_of('mrpc')}` for pairs and `{default_of('sst2')}` for single texts. "
        "sst2: 10,000 rows of train. mrpc, rte, sst2: accuracy, where two members combined in any way prefer the same "
        "of two classes; stsb: Pearson x 100, where every way is the average. "
        "Fine-tuned through BERT's own head; products in float32 or, where the machine has it, bfloat16. "
        "The default head and both controls train as `bertvision run` does it (3 epochs at 2e-3, three members); the "
        "others for 5 epochs at a rate of 1e-3, the full Xception for one.",
        "",
    ]
    defaults = {task: default_of(task) for task in given.tasks}
    results: dict[str, Any] = {"default": defaults, "seeds": given.seeds, "scores": {}, "tests": {}}
    for fraction in given.fractions:
        columns = {task: dict(found[task, fraction]) for task in given.tasks if (task, fraction) in found}
        if not columns:
            continue
        for cell in columns.values():
            cell[CHOSEN] = choose_paper(cell)
        rows = scores(columns)
        rivals = [BERT, DECAYED, LAST, ONLY, CHOSEN]
        shown, tested = tests(rivals, list(columns.values()))
        lines += [
            f"## Fine-tuned for {fraction:g} epoch",
            "",
            *table(rows, list(columns), papers, len(given.seeds)),
            "",
        ]
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
    """SQuAD 2.0, on encoders that were fine-tuned elsewhere."""
    default = default_of("squad2")
    finished = Cells.of("zoo-spans")
    if given.report:
        places = {key.split("/")[1] for key in finished}
    else:
        places = {path.name for path in given.checkpoints.iterdir() if path.is_dir()}
    places = sorted(places, key=float)
    main = [*dict.fromkeys([*MAIN_SPANS, default]), "bert-head", last_layer_only(default)]
    specs = {
        "heavy": HEAVY_SPANS,
        "cnn": [*CNN_SPANS, default, "bert-head"],
        "deep": [*DEEP_SPANS, default, "bert-head"],
    }
    found: dict[str, dict[str, ScoresBySeed]] = {}

    def make_cell(checkpoint: str, seed: int, stage: str, chosen: Sequence[str]) -> dict[str, Run]:
        store = StoreConfig(directory=str(given.stores / checkpoint / (stage if stage in PARTS else "all")))
        part = PARTS.get(stage, {})
        encoder = str(given.checkpoints / checkpoint)
        base = make(task="squad2", data_dir=given.data_dir, encoder=encoder, fractions=[0.0], seed=seed, **part)
        optim = replace(base.train, epochs=given.epochs, gradient_accumulation_steps=8 if stage == "deep" else 1)
        experiment = replace(base, store=store, states="store", controls=False, train=optim, heads=list(chosen))
        list(extraction.extract(experiment, given.runs, ["train", "validation", "dev"]))
        return train(experiment, 0.0, given.runs, default)

    plan: list[tuple[str, str, int, Sequence[str]]] = []
    stages = ["main", "heavy", "cnn", "deep"]
    for stage in stages:
        if stage == "main":
            plan += [(stage, place, seed, main) for seed in given.seeds for place in places]
        else:
            plan += [(stage, place, given.seeds[0], specs[stage]) for place in places]
    for stage, place, seed, chosen in plan:
        key = f"{stage}/{place}/{seed}"
        if not (old := key in finished) and (given.report or stage not in (given.stages or stages)):
            continue
        names = [row_name(spec, default) for spec in chosen] + ([OURS] if default in chosen else [])
        make_this = partial(make_cell, place, seed, stage, chosen)
        made = read(finished, key) if given.report else kept(finished, key, names, make_this)
        cell = found.setdefault("main" if stage == "heavy" else stage, {}).setdefault(place, {})
        add(cell, {name: each for name, each in made.items() if name != BERT or stage != "heavy"})
        if not old:
            print(stage, place, seed, flush=True)
    finished.pack()
    report_spans(found, given, default)


def report_spans(stages: dict[str, dict[str, ScoresBySeed]], given: argparse.Namespace, default: str) -> None:
    """Write the results of the finished cells."""
    found = stages.get("main", {})
    papers = {name: row.paper for name, row in heads.HEADS.items() if row.paper}
    lines = [
        "# Span heads, side by side",
        "",
        "`python benchmarks/zoo.py spans --data-dir SQUAD --checkpoints DIR --stores DIR --seeds "
        f"{','.join(map(str, given.seeds))}`: MiniLM fine-tuned on "
        "SQuAD 2.0 (33 articles) for the epochs that head the columns, **one seed of fine-tuning**; "
        f"{len(given.seeds)} seeds of heads (fewer where marked), {given.epochs:g} epoch over all of its train "
        "questions from an int8 store. F1 on 2,724 dev questions of other articles, 95 % interval (bootstrap over head "
        f"seeds and questions). The default head is `{default}`. The no-answer threshold of every row, BERT's too, "
        "comes from validation (1,198 questions of yet "
        "other articles), as do the epoch and the default head.",
        "",
    ]
    results: dict[str, Any] = {"default": default, "seeds": given.seeds, "epochs": given.epochs, "tests": {}}
    results["scores"] = rows = scores(found)
    lines += [*table(rows, list(found), papers, len(given.seeds)), "", "## The default head against the others", ""]
    for name, cell in found.items():
        if OURS not in cell:
            continue
        shown, tested = tests([BERT, LAST, ONLY], [cell])
        ensembles = {key: float(np.mean([each.validation for each in cell[key]])) for key in cell if "default (" in key}
        best = max(ensembles, key=lambda key: ensembles[key])
        gap = against(OURS, best, [cell])
        results["tests"][name] = {"default": tested, "ensemble": {"name": best} | asdict(gap)}
        lines += [f"After {name} epochs (bootstrap paired by head seed and question, two-sided):", "", *shown, ""]
        lines += [
            f"Of the ensembles validation prefers {best}: {gap.mean:+.2f} over the default head "
            f"({gap.low:+.2f} to {gap.high:+.2f}, p {gap.p:.4f}).",
            "",
        ]
    for stage, part in PARTS.items():
        if stage in stages:
            results[stage] = part | {"scores": scores(stages[stage])}
            lines += [
                f"## {'Convolutions' if stage == 'cnn' else 'Inception and Xception'}, on {part['limit']} questions",
                "",
                f"One head seed, trained on {part['limit']} questions and scored on {part['limit_dev']} of dev; the "
                "default head and the retrained last layer on the same part beside them.",
                "",
                *table(results[stage]["scores"], list(stages[stage]), papers, 1),
                "",
            ]
    write_json(given.json or Path("benchmarks/results/zoo-spans.json"), results)
    (given.page or Path("docs/zoo-spans.md")).write_text("\n".join(lines))


def main() -> None:
    """Collect and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["sentences", "spans"])
    parser.add_argument("--data-dir", help="needed unless --report")
    parser.add_argument("--tasks", default="mrpc,stsb,rte,sst2", type=lambda text: text.split(","))
    parser.add_argument("--seeds", default=[], type=lambda text: [int(each) for each in text.split(",")])
    parser.add_argument("--fractions", default="0.3,1", type=lambda text: [float(each) for each in text.split(",")])
    parser.add_argument("--checkpoints", type=Path, help="needed for spans unless --report")
    parser.add_argument("--stores", type=Path, default=Path("runs/zoo-stores"))
    parser.add_argument("--epochs", type=float, default=1.0, help="of span heads")
    parser.add_argument("--stages", default=[], type=lambda text: text.split(","), help="to run, else all")
    parser.add_argument("--report", action="store_true", help="only write what there is")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    given.seeds = given.seeds or SEEDS[given.kind]
    if not given.report and not (given.data_dir and (given.checkpoints or given.kind == "sentences")):
        parser.error("--data-dir and, for spans, --checkpoints are needed, unless --report is given")
    {"sentences": sentences, "spans": spans}[given.kind](given)


if __name__ == "__main__":
    main()
