"""Commands that summarize runs: study, report, submit."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertvision.cli import output
from bertvision.cli.options import experiment_flags
from bertvision.cli.run_references import RunReference, resolve_run
from bertvision.cli.training import Cluster, Json, Root
from bertvision.errors import BertVisionError

if TYPE_CHECKING:
    from bertvision.lab.studies import StudyResult
    from bertvision.pipeline.experiment import Experiment


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command()(experiment_flags(study))
    app.command()(report)
    app.command()(submit)


def study(
    experiments: "list[tuple[Experiment, dict[str, Any]]]",
    name: Annotated[
        str, typer.Argument(help="A study of `bertvision study list`; all: every study that applies to the task.")
    ],
    seeds: Annotated[str, typer.Option(help="Seeds of fine-tuning and heads, e.g. 0,1,2.", show_default=False)] = "",
    to: Annotated[
        str, typer.Option(help="For `transfer`: the tasks to which a head is transferred.", show_default=False)
    ] = "",
    root: Root = Path("runs"),
    address: Cluster = "",
    as_json: Json = False,
) -> None:
    """Run a study: a table and a figure of the paper. `list` shows all studies. Finished runs are reused.

    Example: bertvision study curve --task stsb --limit 1000 --fractions 0.1,0.3,1 --seeds 0,1
    """
    from bertvision.lab import studies
    from bertvision.lab.reports import tables
    from bertvision.pipeline.experiment import merge

    if name == "list":
        rows = [
            {"study": key, "on": row.tasks, "summary": row.summary, "in the paper": row.paper}
            for key, row in studies.STUDIES.items()
        ]
        output.as_json(rows) if as_json else output.table(rows)
        return
    results: list[StudyResult] = []
    planned: list[tuple[Experiment, studies.StudyOptions, list[str]]] = []
    for experiment, settings in experiments:
        options = merge(studies.StudyOptions(), settings)
        if seeds:
            options = merge(options, {"seeds": _seeds(seeds)})
        if to:
            options = merge(options, {"to": to.split(",")})
        planned.append((experiment, options, (options.studies or ["all"]) if name == "all" else [name]))
    if address:
        studies.run_studies_on_cluster(planned, address, root)
    command = shlex.join(["bertvision", *sys.argv[1:]])
    for experiment, options, names in planned:
        for result in studies.run_studies(experiment, names, options=options, root=root, command=command):
            results.append(result)
            if not as_json:
                print(tables.markdown(result))
    if as_json:
        from dataclasses import asdict

        output.as_json([asdict(result) for result in results])


def _seeds(text: str) -> list[int]:
    try:
        return [int(piece) for piece in text.split(",")]
    except ValueError:
        raise BertVisionError(f"--seeds takes whole numbers such as 0,1,2, got {text!r}.") from None


def report(
    roots: Annotated[list[Path], typer.Argument(help="Directories of runs, e.g. runs.", metavar="RUNS...")],
    out: Annotated[Path, typer.Option("--out", "-o", help="HTML file to write.")] = Path("report.html"),
    files: Annotated[
        Path | None, typer.Option(help="Also write pictures, Markdown, CSV and JSON into this directory.")
    ] = None,
    examples: Annotated[bool, typer.Option(help="Show examples that models get wrong.")] = True,
    claims: Annotated[
        Path | None,
        typer.Option(
            help="Write only a Markdown page of the paper's claims, tested by the studies.", show_default=False
        ),
    ] = None,
) -> None:
    """Write the results of all runs, studies and searches as one HTML page that works offline.

    Example: bertvision report runs -o report.html --files report
    """
    from bertvision.lab.reports import write_claims, write_report

    if claims:
        rows = write_claims(roots, claims)
        print(f"{claims}: {len(rows)} verdicts.")
        return
    contents = write_report(roots, out, files=files, examples=examples)
    print(f"{out}: {contents.describe()}.")
    if files:
        print(f"{files}: pictures, tables.md, CSV and JSON.")


def submit(
    run: RunReference,
    out: Annotated[Path, typer.Option("--out", "-o", help="Directory for the files.")] = Path("submission"),
    file: Annotated[
        Path | None, typer.Option(help="The official test file (default: the dev rows).", show_default=False)
    ] = None,
    root: Root = Path("runs"),
) -> None:
    """Write predictions in the format of the official scorers and leaderboards: GLUE's TSV, SQuAD's JSON.

    Example: bertvision submit mrpc --file glue/MRPC/test.tsv
    """
    from bertvision.lab.reports import write_submission

    for path in write_submission(resolve_run(run, root).directory, out, file):
        print(path)
