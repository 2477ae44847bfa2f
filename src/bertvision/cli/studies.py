"""Commands about what runs teach: study, report, submit."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertvision.cli import output
from bertvision.cli.options import experiment_flags
from bertvision.cli.training import Cluster, Json, Root
from bertvision.errors import BertVisionError

if TYPE_CHECKING:
    from bertvision.lab.experiment import Experiment
    from bertvision.lab.studies import Result


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command()(experiment_flags(study))
    app.command()(report)
    app.command()(submit)


def study(
    experiments: "list[tuple[Experiment, dict[str, Any]]]",
    name: Annotated[str, typer.Argument(help="A study of `bertvision study list`; all: those that suit the task.")],
    seeds: Annotated[str, typer.Option(help="Of fine-tuning and heads, e.g. 0,1,2.", show_default=False)] = "",
    to: Annotated[str, typer.Option(help="transfer: the tasks a head goes to.", show_default=False)] = "",
    root: Root = Path("runs"),
    address: Cluster = "",
    as_json: Json = False,
) -> None:
    """Make a table and a figure of the paper; `list` names them. What is finished is not run again.

    Example: bertvision study curve --task stsb --limit 1000 --fractions 0.1,0.3,1 --seeds 0,1
    """
    from bertvision.lab import studies
    from bertvision.lab.experiment import merge
    from bertvision.lab.report import tables

    if name == "list":
        rows = [
            {"study": n, "on": s.on, "summary": s.summary, "in the paper": s.paper} for n, s in studies.STUDIES.items()
        ]
        output.as_json(rows) if as_json else output.table(rows)
        return
    found: list[Result] = []
    todo: list[tuple[Experiment, studies.StudyOptions, list[str]]] = []
    for experiment, settings in experiments:
        options = merge(studies.StudyOptions(), settings)
        if seeds:
            options = merge(options, {"seeds": _seeds(seeds)})
        if to:
            options = merge(options, {"to": to.split(",")})
        todo.append((experiment, options, (options.studies or ["all"]) if name == "all" else [name]))
    if address:
        studies.spread(todo, address, root)
    command = shlex.join(["bertvision", *sys.argv[1:]])
    for experiment, options, names in todo:
        for result in studies.run(experiment, names, options=options, root=root, command=command):
            found.append(result)
            if not as_json:
                print(tables.markdown(result))
    if as_json:
        from dataclasses import asdict

        output.as_json([asdict(result) for result in found])


def _seeds(text: str) -> list[int]:
    try:
        return [int(piece) for piece in text.split(",")]
    except ValueError:
        raise BertVisionError(f"--seeds takes whole numbers such as 0,1,2, got {text!r}.") from None


def report(
    roots: Annotated[list[Path], typer.Argument(help="Where runs with results of studies are.", metavar="RUNS...")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page.")] = Path("report.html"),
    files: Annotated[
        Path | None, typer.Option(help="Also write pictures, Markdown, CSV and JSON into this directory.")
    ] = None,
    examples: Annotated[bool, typer.Option(help="Show what models get wrong.")] = True,
) -> None:
    """Write one page of all results of studies: it works offline, sorts, and needs no server.

    Example: bertvision report runs -o report.html --files report
    """
    from bertvision.lab.report import write_report

    results = write_report(roots, out, files=files, examples=examples)
    print(f"{out}: {len(results)} studies of {', '.join(dict.fromkeys(result.task for result in results))}.")
    if files:
        print(f"{files}: pictures, tables.md, CSV and JSON.")


def submit(
    run: Annotated[Path, typer.Argument(help="Directory of a finished run.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Directory for the files.")] = Path("submission"),
    file: Annotated[
        Path | None, typer.Option(help="The official test file; none: dev's saved predictions.", show_default=False)
    ] = None,
) -> None:
    """Write predictions as the official scorers and leaderboards take them: GLUE's TSV, SQuAD's JSON.

    Example: bertvision submit runs/.../adapter-1a2b3c4d --file glue/MRPC/test.tsv
    """
    from bertvision.lab.report.submission import write_submission

    for path in write_submission(run, out, file):
        print(path)
