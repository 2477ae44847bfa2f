"""Commands that do the work: run, finetune, train, evaluate, score, ensemble, predict, demo."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bertvision.cli import show
from bertvision.cli.options import experiment_flags
from bertvision.config import Experiment, make
from bertvision.errors import BertVisionError

Root = Annotated[Path, typer.Option("--runs", help="Where runs are kept.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

# The demo's rows are few enough for two cores and a quarter of an hour; its scores are those of a subset.
DEMO = {"limit": 3000, "source": "registry", "fractions": [0.3, 1.0], "read_at": [0.3]}
DEMO_HEADS = ["learned", "adapter:gather=cls", "adapter:gather=mean", "adapter:gather=max"]
DEMO_TASKS = {
    "stsb": [("A man is playing a guitar.", "Somebody plays an instrument.")],
    "rotten-tomatoes": ["a warm , funny and quietly moving film"],
}


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    for command in (run, finetune, train):
        app.command()(experiment_flags(command))
    for command in (evaluate, score, ensemble, predict, demo):
        app.command()(command)


def run(experiment: Experiment, root: Root = Path("runs"), as_json: Json = False) -> None:
    """The whole line: fine-tune, train heads and controls, ensemble, score.

    Example: bertvision run --task stsb --limit 1000 --heads learned,adapter:gather=max
    """
    from bertvision import pipeline

    result = pipeline.run(experiment, root=root)
    _print_comparison(result, as_json)


def finetune(experiment: Experiment, root: Root = Path("runs"), as_json: Json = False) -> None:
    """Fine-tune a backbone; save and score it at every fraction.

    Example: bertvision finetune --task rotten-tomatoes --fractions 0.1,0.3,1 --limit 2000
    """
    from bertvision import pipeline

    prepared = pipeline.prepare(experiment)
    tuned = pipeline.finetune(prepared, root)
    runs = [pipeline.bert_run(prepared, pipeline.open_point(prepared, tuned, f)) for f in tuned.fractions]
    rows = [
        {
            "fraction": run.experiment["fraction"],
            "training_loss": run.metrics["training_loss"],
            "seconds": run.metrics["seconds"]["total"],
            "saving_seconds": tuned.point(run.experiment["fraction"])["saving_seconds"],
            "validation": run.metrics["validation"],
            "score": run.metrics["score"],
            "backbone": str(run.backbone.resolve()),
        }
        for run in runs
    ]
    if as_json:
        show.as_json(rows)
        return
    key = prepared.task.primary
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
    show.table(table, numbers=list(table[0]))
    print(f"Backbones: {tuned.directory}")


def train(experiment: Experiment, root: Root = Path("runs"), as_json: Json = False) -> None:
    """Train heads (and their controls) on the states of a fine-tuned backbone; fine-tunes it first if need be.

    Example: bertvision train --task stsb --limit 1000 --at 0.3 --heads adapter:gather=max,size=32
    """
    from dataclasses import replace

    from bertvision import pipeline

    experiment = replace(experiment, fractions=experiment.read_at or [min(experiment.fractions)])
    result = pipeline.run(experiment, root=root)
    _print_comparison(result, as_json)


def evaluate(
    run: Annotated[Path, typer.Argument(help="Directory of a finished run.")],
    data: Annotated[Path | None, typer.Option(help="Score this labelled file instead of dev.")] = None,
    as_json: Json = False,
) -> None:
    """Score a run again: its saved dev predictions, or a labelled file that it predicts now.

    Example: bertvision evaluate runs/stsb/minilm/0a1b2c3d/0.3/bert-4e5f6a7b
    """
    from bertvision import pipeline, predictor
    from bertvision.runs import open_run

    found = open_run(run)
    if data is None:
        prepared = pipeline.prepare(pipeline.experiment_of(found))
        scores = pipeline.rescore(prepared, found)
    else:
        scores = predictor.load(found).score_file(data)
    _print_scores(scores, as_json)


def score(
    task: Annotated[str, typer.Argument(help="squad2")],
    data: Annotated[Path, typer.Option(help="Data in the official format, e.g. dev-v2.0.json.")],
    predictions: Annotated[Path, typer.Option(help="Predictions in the official format: {id: text}.")],
    no_answer: Annotated[Path | None, typer.Option(help="No-answer scores: {id: number}.")] = None,
    as_json: Json = False,
) -> None:
    """Score any SQuAD prediction file as the official script does.

    Example: bertvision score squad2 --data dev-v2.0.json --predictions preds.json
    """
    from bertvision.errors import lookup
    from bertvision.tasks import score_file

    lookup({"squad2": None}, task, "task with an official prediction file")
    _print_scores(score_file(data, predictions, no_answer), as_json)


def ensemble(
    runs: Annotated[list[Path], typer.Argument(help="Directories of two or more finished runs on the same data.")],
    how: Annotated[str, typer.Option(help="max, mean or product of the softmaxes.")] = "max",
    as_json: Json = False,
) -> None:
    """Combine runs, and score the result.

    Example: bertvision ensemble RUN/bert-4e5f6a7b RUN/adapter-0a1b2c3d --how mean
    """
    from bertvision import pipeline
    from bertvision.runs import open_run

    members = [open_run(path) for path in runs]
    if len(members) < 2:
        raise BertVisionError("An ensemble needs at least two runs.")
    prepared = pipeline.prepare(pipeline.experiment_of(members[-1]))
    made = pipeline.ensemble(prepared, members[-1].directory.parent, members, how)
    rows = pipeline.rows(pipeline.Comparison([*members, made], made, made.directory / "metrics.json"))
    if as_json:
        show.as_json(rows)
        return
    show.table(show.comparison(rows), numbers=show.NUMBERS, bold="chosen")
    print(f"Run: {made.directory}")


def predict(
    run: Annotated[Path, typer.Argument(help="Directory of a finished run.")],
    texts: Annotated[list[str] | None, typer.Argument(help="A text; two for a pair; question and context.")] = None,
    question: Annotated[str, typer.Option(help="Question, with --context.")] = "",
    context: Annotated[str, typer.Option(help="Text to answer from.")] = "",
    file: Annotated[Path | None, typer.Option(help="JSONL with one item a line; - reads stdin.")] = None,
    as_json: Json = False,
) -> None:
    """Answer new text with a finished run.

    Example: bertvision predict RUN "a warm, funny film"
    """
    from bertvision import predictor

    items: list[Any]
    if file is not None:
        items = _read_items(file)
    elif question or context:
        items = [{"question": question, "context": context}]
    elif texts:
        items = [texts[0] if len(texts) == 1 else tuple(texts)]
    else:
        raise BertVisionError("Nothing to predict: give a text, --question and --context, or --file.")
    answers = predictor.load(run).predict(items)
    if as_json:
        show.as_json(answers)
        return
    for answer in answers:
        print(show.answer(answer))


def _read_items(file: Path) -> list[Any]:
    """Read a JSON string, list of two or object per line."""
    items = []
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BertVisionError(f"Cannot read {file}: {error}.") from error
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except json.JSONDecodeError as error:
            raise BertVisionError(f"{file}, line {number}, is not valid JSON: {error}.") from error
        if not isinstance(item, str | list | dict):
            raise BertVisionError(f"{file}, line {number}: expected a text, a pair or an object, got {item!r}.")
        items.append(tuple(item) if isinstance(item, list) else item)
    return items


def demo(root: Root = Path("runs")) -> None:
    """Show the whole line on real data, with embedded defaults and no hub: MiniLM on STS-B and Rotten Tomatoes.

    Example: bertvision demo
    """
    from bertvision import pipeline, predictor

    for task, items in DEMO_TASKS.items():
        result = pipeline.run(make(task=task, heads=DEMO_HEADS, **DEMO), root=root)
        _print_comparison(result, as_json=False)
        for item, answer in zip(items, predictor.load(result.best).predict(items), strict=True):
            said = item if isinstance(item, str) else " | ".join(item)
            print(f"\n{said!r} -> {show.answer(answer)}")
            words = " ".join(json.dumps(text) for text in ([item] if isinstance(item, str) else item))
            print(f"Ask it yourself: {sys.argv[0]} predict {result.best.directory} {words}\n")


def _print_comparison(result: Any, as_json: bool) -> None:
    from bertvision import pipeline

    rows = pipeline.rows(result)
    worded = show.comparison(rows)
    plain = [{key: value for key, value in row.items() if key != "chosen"} for row in worded]
    text = show.markdown(plain, numbers=[name for name in plain[0] if name != "model"])
    result.file.with_suffix(".md").write_text(text, encoding="utf-8")
    if as_json:
        show.as_json(rows)
        return
    numbers = [name for name in plain[0] if name != "model"]
    show.table(worded, numbers=numbers, bold="chosen")
    print(
        "* the head that validation prefers; controls are no candidates. 95 %: bootstrap over dev examples, one seed."
    )
    at = result.best.experiment["fraction"]
    rivals = [run for run in result.runs if run.kind in ("bert", "control") and run.experiment["fraction"] == at]
    above = [f"{run.name} ({run.kind})" for run in rivals if run.grade[0] > result.best.grade[0]]
    if above:
        print(f"  On validation these are above it: {', '.join(above)}.")
    print(f"Results: {result.file}\nChosen:  {result.best.directory}")


def _print_scores(scores: dict[str, Any], as_json: bool) -> None:
    if as_json:
        show.as_json(scores)
        return
    for key, value in scores.items():
        print(f"{key:24} {value:,.2f}" if isinstance(value, float) else f"{key:24} {value:,}")
