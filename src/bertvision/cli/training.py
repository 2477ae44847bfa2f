"""Commands that train and evaluate: run, plan, finetune, train, evaluate, score, ensemble, demo."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertvision.cli import output, planning
from bertvision.cli.options import experiment_flags
from bertvision.cli.planning import DiskLimit, MemoryLimit, TimeLimit
from bertvision.cli.run_references import RunReference, RunReferences, resolve_model, resolve_run, task_kind_of
from bertvision.cli.summary import print_summary
from bertvision.errors import BertVisionError
from bertvision.progress import is_main_rank
from bertvision.run_stages import stage
from bertvision.stage_view import RunView

if TYPE_CHECKING:
    from bertvision.pipeline import ExperimentResult
    from bertvision.pipeline.experiment import Experiment

Root = Annotated[Path, typer.Option("--runs", help="Directory of runs.")]
Cluster = Annotated[str, typer.Option("--cluster", help="Ray cluster to use: ray://HOST:PORT, or auto.")]
SeparateEncoder = Annotated[
    str,
    typer.Option(
        "--encoder", help="Encoder of a run that was shared without it: a directory or a name.", show_default=False
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ShowTable = Annotated[bool, typer.Option("--table", help="Also print the table of all heads, controls and BERT.")]

# A subset of the rows, so that the demo takes a few minutes on two cores.
DEMO: dict[str, Any] = {"limit": 3000, "source": "registry"}
DEMO_HEADS = ["learned", "adapter:token_pooling=cls", "adapter:token_pooling=mean", "adapter:token_pooling=max"]
DEMO_TASKS: dict[str, list[Any]] = {
    "stsb": [("A man is playing a guitar.", "Somebody plays an instrument.")],
    "rotten-tomatoes": ["a warm , funny and quietly moving film"],
}


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    for command in (run, planning.plan, finetune, train):
        app.command()(experiment_flags(command))
    for command in (evaluate, score, ensemble, demo):
        app.command()(command)


def run(
    experiment: "Experiment",
    time_limit: TimeLimit = "",
    memory_limit: MemoryLimit = "",
    disk_limit: DiskLimit = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan of a time limit only.")] = False,
    root: Root = Path("runs"),
    table: ShowTable = False,
    as_json: Json = False,
) -> None:
    """Train a model: fine-tune an encoder briefly, train heads on all its layers, and score them on the dev rows.

    The data are a task of `bertvision tasks` (--task) or your own file (--train-file).

    The head, or combination of heads, with the best validation score is chosen; `bertvision predict TASK "a text"` uses
    it. With --table, all heads are shown beside it, with controls and BERT. The table is always written to the
    directory of the results. While it runs, a terminal shows the stages, the time left and the best score so far.

    With --time-limit, everything is done within that time, from the start of the command: rows are read, the encoder is
    fine-tuned as long as it pays, and the best model is saved and scored. `--fractions` is not used then.

    Example: bertvision run --train-file tickets.csv --text body --label team

    Example: bertvision run --task mrpc --time-limit 5m

    Example: bertvision run --task stsb --limit 1000 --heads learned,adapter:token_pooling=max
    """
    from bertvision import pipeline

    if time_limit:
        limits = planning.LimitFlags(time_limit, memory_limit, disk_limit)
        if dry_run:
            planning.print_plan(experiment, limits, root, as_json)
        else:
            _print_result(planning.run_within(experiment, limits, root, as_json), root, table, as_json)
        return
    if memory_limit or disk_limit or dry_run:
        raise BertVisionError("--memory-limit, --disk-limit and --dry-run need --time-limit, such as --time-limit 5m.")
    if "," in experiment.task:
        _run_multitask(experiment, root, as_json)
        return
    with RunView(silent=as_json):
        result = pipeline.run(experiment, root=root)
    _print_result(result, root, table, as_json)


def _run_multitask(experiment: "Experiment", root: Path, as_json: bool) -> None:
    """Fine-tune one encoder on all tasks, and one per task for comparison."""
    from bertvision import pipeline

    experiments = _one_per_task(experiment)
    rows = []
    for task, shared_runs in pipeline.run_multitask(experiments, root).items():
        alone = pipeline.run(next(single for single in experiments if single.task == task), root=root)
        for shared, runs in ((True, shared_runs), (False, alone.runs)):
            rows += [
                {
                    "task": task,
                    "encoder": "shared" if shared else "its own",
                    "fraction": run.record.fraction,
                    "name": run.name,
                    "kind": run.kind,
                    "primary": run.metrics.primary_metric,
                    "score": run.metrics.scores,
                    "interval": run.metrics.interval,
                    "validation": run.validation_score[0],
                    "directory": str(run.directory),
                }
                for run in runs
            ]
    if as_json:
        output.as_json(rows)
        return
    table = [
        {
            "task": row["task"],
            "encoder": row["encoder"],
            "fraction": f"{row['fraction']:g}",
            "model": row["name"],
            "score": f"{row['score'][row['primary']]:.2f} {row['primary']}",
            "95 %": "{:.2f} - {:.2f}".format(*row["interval"]),
            "validation": f"{row['validation']:.2f}",
        }
        for row in rows
    ]
    output.table(table, numbers=["fraction", "score", "95 %", "validation"])
    print("Runs on the shared encoder need one forward pass when served together: bertvision serve RUN RUN ...")


def finetune(experiment: "Experiment", root: Root = Path("runs"), as_json: Json = False) -> None:
    """Fine-tune an encoder; save and score it at every fraction.

    Example: bertvision finetune --task rotten-tomatoes --fractions 0.1,0.3,1 --limit 2000
    """
    from bertvision import pipeline

    with RunView(silent=as_json):
        if "," in experiment.task:
            loaded = [pipeline.prepare(single) for single in _one_per_task(experiment)]
            members = pipeline.finetune_multitask(loaded, root)
        else:
            data = pipeline.prepare(experiment)
            members = [(data, pipeline.finetune(data, root))]
        curves = [_curve(data, checkpoints) for data, checkpoints in members]
    if as_json:
        output.as_json([row for rows in curves for row in rows])
        return
    for (data, checkpoints), rows in zip(members, curves, strict=True):
        key = data.task.primary
        table = [
            {
                "fraction": f"{row['fraction']:g}",
                "training loss": f"{row['training_loss']:.4f}",
                "seconds": f"{row['seconds']:.0f}",
                f"validation {key}": f"{row['validation'][key]:.2f}",
                f"dev {key}": f"{row['score'][key]:.2f}",
            }
            for row in rows
        ]
        output.table(table, data.task.name if len(members) > 1 else "", numbers=list(table[0]))
        print(f"Encoders: {checkpoints.directory}")


def _one_per_task(experiment: "Experiment") -> "list[Experiment]":
    """Return an experiment for each task of `--task a,b,c`."""
    from dataclasses import replace

    return [replace(experiment, task=task.strip()) for task in experiment.task.split(",")]


def _curve(data: Any, checkpoints: Any) -> list[dict[str, Any]]:
    """Return the results of BERT at every fraction."""
    from bertvision import pipeline

    runs = []
    for fraction in checkpoints.fractions:
        with stage(f"score {data.task.name} at {fraction:g}"):
            runs.append(pipeline.bert_run(data, pipeline.open_checkpoint(data, checkpoints, fraction)))
    return [
        {
            "task": data.task.name,
            "fraction": run.record.fraction,
            "training_loss": run.metrics.training_loss,
            "seconds": run.metrics.seconds.total,
            "saving_seconds": checkpoints.record(run.record.fraction).saving_seconds,
            "validation": run.metrics.validation_scores,
            "score": run.metrics.scores,
            "encoder": str(run.encoder_directory.resolve()),
        }
        for run in runs
    ]


def train(experiment: "Experiment", root: Root = Path("runs"), table: ShowTable = False, as_json: Json = False) -> None:
    """Train heads and their controls on the hidden states of a fine-tuned encoder; fine-tunes it first if necessary.

    Example: bertvision train --task stsb --limit 1000 --at 0.3 --heads adapter:size=32,token_pooling=max
    """
    from dataclasses import replace

    from bertvision import pipeline
    from bertvision.pipeline.experiment import resolve_fractions

    kind = pipeline.find_task(experiment).example_kind
    experiment = replace(experiment, fractions=resolve_fractions(experiment, kind).head_fractions)
    with RunView(silent=as_json):
        result = pipeline.run(experiment, root=root)
    _print_result(result, root, table, as_json)


def evaluate(
    run: RunReference,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            "--file",
            help="Labelled file to predict and score: CSV, TSV, JSONL, Parquet, SQuAD JSON or CoNLL. Without it, the "
            "saved predictions of the dev rows are scored again.",
            show_default=False,
        ),
    ] = None,
    text: Annotated[str, typer.Option(help="Column of the text (default: as in training).", show_default=False)] = "",
    text_pair: Annotated[str, typer.Option(help="Column of the second text of a pair.", show_default=False)] = "",
    label: Annotated[str, typer.Option(help="Column of the label (default: as in training).", show_default=False)] = "",
    encoder: Annotated[
        str,
        typer.Option(help="Encoder of a run that was shared without it: a directory or a name.", show_default=False),
    ] = "",
    root: Root = Path("runs"),
    as_json: Json = False,
) -> None:
    """Score a run on a labelled file, or on its dev rows again, with precision and recall of each class.

    On the dev rows themselves the scores are those of the table of `run`.

    Example: bertvision evaluate stsb --data more.csv

    Example: bertvision evaluate tickets --data march.csv --text body --label team
    """
    from bertvision import evaluation_reports, pipeline, trained_model

    if data is None:
        if text or text_pair or label:
            raise BertVisionError("--text, --text-pair and --label name columns of a file: give it with --data.")
        resolved = resolve_run(run, root)
        if not (resolved.directory / "predictions.npz").is_file():
            raise BertVisionError(f"{resolved.directory} has no saved predictions. Give a labelled file with --data.")
        experiment_data = pipeline.prepare(pipeline.experiment_of(resolved))
        scores = pipeline.rescore(experiment_data, resolved)
        calibration = {name: value for name, value in scores.items() if name in resolved.metrics.calibration}
        evaluation = evaluation_reports.evaluation(experiment_data.task, resolved.outcomes(), calibration)
    else:
        model = trained_model.load(resolve_model(run, root), encoder, precision="run")
        try:
            evaluation = evaluation_reports.evaluate_file(model, data, text=text, text_pair=text_pair, label=label)
        except BertVisionError as error:
            hint = " Choose columns with --text, --text-pair and --label." if "has no column" in str(error) else ""
            raise BertVisionError(f"{error}{hint}") from error
    if as_json:
        output.as_json(evaluation.to_dict())
        return
    output.print_evaluation(evaluation)


def score(
    task: Annotated[str, typer.Argument(help="squad2")],
    data: Annotated[Path, typer.Option(help="Data in the official format, e.g. dev-v2.0.json.")],
    predictions: Annotated[Path, typer.Option(help="Predictions in the official format: {id: text}.")],
    no_answer: Annotated[Path | None, typer.Option(help="No-answer scores: {id: number}.")] = None,
    as_json: Json = False,
) -> None:
    """Score a SQuAD prediction file as the official script does.

    Example: bertvision score squad2 --data dev-v2.0.json --predictions preds.json
    """
    from bertvision.errors import lookup
    from bertvision.lab.benchmarks import score_file

    lookup({"squad2": None}, task, "task with an official prediction file")
    _print_scores(score_file(data, predictions, no_answer), as_json)


def ensemble(
    runs: RunReferences,
    how: Annotated[str, typer.Option(help="max, mean or product of the softmax probabilities.")] = "max",
    root: Root = Path("runs"),
    as_json: Json = False,
) -> None:
    """Combine two or more runs on the same data, and score the result.

    Example: bertvision ensemble 4e5f6a7b 0a1b2c3d --how mean
    """
    from bertvision import pipeline

    members = [resolve_run(reference, root) for reference in runs]
    if len(members) < 2:
        raise BertVisionError("An ensemble needs at least two runs.")
    data = pipeline.prepare(pipeline.experiment_of(members[-1]))
    combined = pipeline.ensemble(data, members[-1].directory.parent, members, how)
    result = pipeline.ExperimentResult([*members, combined], combined, combined.directory / "metrics.json")
    rows = result.to_rows()
    if as_json:
        output.as_json(rows)
        return
    output.print_comparison(rows, data.task.example_kind)
    print(f"Run: {combined.directory}")


def demo(root: Root = Path("runs")) -> None:
    """Run the whole pipeline on real data without the Hub: MiniLM on STS-B and Rotten Tomatoes.

    Example: bertvision demo
    """
    from bertvision import pipeline, trained_model
    from bertvision.heads import default_head
    from bertvision.pipeline.experiment import make
    from bertvision.tasks import TASKS

    chosen = []
    for task, items in DEMO_TASKS.items():
        heads = list(dict.fromkeys([*DEMO_HEADS, str(default_head(TASKS[task].example_kind))]))
        with RunView():
            result = pipeline.run(make(task=task, heads=heads, **DEMO), root=root)
        _print_result(result, root, table=True, as_json=False)
        for item, answer in zip(items, trained_model.load(result.best).predict(items), strict=True):
            texts = [item] if isinstance(item, str) else list(item)
            print(f"\n{' | '.join(texts)!r} -> {output.answer(answer)}")
            print(f"Try it: {sys.argv[0]} predict {result.best.directory} {' '.join(map(json.dumps, texts))}\n")
        chosen.append(str(result.best.directory))
    print(f"Try both in a browser: {sys.argv[0]} serve {' '.join(chosen)}")


def _print_result(result: "ExperimentResult", root: Path, table: bool, as_json: bool) -> None:
    """Write the table to a file, and print it, or a summary, or JSON."""
    rows, task_kind = result.to_rows(), task_kind_of(result.best)
    full = [
        {key: value for key, value in row.items() if key != "chosen"}
        for row in output.comparison(rows, task_kind, full=True)
    ]
    text = output.markdown(full, numbers=[name for name in full[0] if name != "model"])
    if is_main_rank():
        result.file.with_suffix(".md").write_text(text, encoding="utf-8")
    if as_json:
        output.as_json(rows)
        return
    if table:
        output.print_comparison(rows, task_kind)
        print("* best head by validation score (controls are excluded). 95 %: bootstrap over dev examples, one seed.")
        print(f"Results: {result.file}")
    print_summary(result, root)


def _print_scores(scores: dict[str, Any], as_json: bool) -> None:
    if as_json:
        output.as_json(scores)
    else:
        output.print_scores(scores)
