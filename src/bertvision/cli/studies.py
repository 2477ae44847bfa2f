"""Commands that summarize runs: study, glue, diagnose, report, plot, submit."""

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
    app.command()(experiment_flags(glue))
    app.command()(diagnose)
    app.command()(report)
    app.command()(plot)
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


def glue(experiment: "Experiment", root: Root = Path("runs"), as_json: Json = False) -> None:
    """Run the nine tasks of GLUE: one table on the dev rows, and the official average.

    Tasks without data are named and left out; there is no average then. The average is the mean over tasks of the mean
    of their metrics. If the data directory holds diagnostic-full.tsv, the mnli model is scored on it (AX).

    Example: bertvision glue --data-dir glue --limit 3000
    """
    from bertvision.lab.reports import GLUE_TASKS, run_glue

    if experiment.task:
        raise BertVisionError("`glue` runs all nine tasks. `bertvision run --task NAME` runs one of them.")
    result = run_glue(experiment, root)
    if as_json:
        output.as_json(result.to_dict())
        return
    if result.scores:
        models = list(result.scores[0].models)
        rows: list[dict[str, str]] = [
            {
                "task": score.task,
                "rows": f"{score.rows[0]:,} / {score.rows[1]:,}",
                "metrics": ", ".join(score.models[models[0]]),
                **{name: " / ".join(f"{value:.2f}" for value in score.models[name].values()) for name in models},
            }
            for score in result.scores
        ]
        averages = {name: "-" if (mean := result.average(name)) is None else f"{mean:.2f}" for name in models}
        rows.append({"task": "GLUE", "rows": "", "metrics": "average of the tasks", **averages})
        if result.diagnostics:
            shown = {name: f"{value:.2f}" for name, value in result.diagnostics.items()}
            rows.append({"task": "ax", "rows": "", "metrics": "matthews (not in the average)", **shown})
        output.table(rows, numbers=models)
    if result.missing:
        print(f"There is no average: {len(result.missing)} of {len(GLUE_TASKS)} tasks have no data.")
    for name, why in result.missing.items():
        print(f"{name}: {why}")


def diagnose(
    run: RunReference,
    file: Annotated[Path, typer.Option(help="GLUE's diagnostic-full.tsv.")],
    root: Root = Path("runs"),
    as_json: Json = False,
) -> None:
    """Score an mnli model on GLUE's diagnostic set (AX): Matthews correlation, overall and by phenomenon.

    Example: bertvision diagnose mnli --file glue/diagnostic/diagnostic-full.tsv
    """
    from bertvision.lab import reports

    scores = reports.diagnose(resolve_run(run, root).directory, file)
    if as_json:
        from dataclasses import asdict

        output.as_json([asdict(score) for score in scores])
        return
    rows = [
        {
            "group": score.group,
            "phenomenon": score.name or "all",
            "rows": f"{score.rows:,}",
            "matthews": f"{score.matthews:.2f}",
        }
        for score in scores
    ]
    output.table(rows, numbers=["rows", "matthews"])


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


def plot(
    run: RunReference,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Directory to write (default: RUN/charts).", show_default=False),
    ] = None,
    format: Annotated[str, typer.Option(help="svg, png, or html (without a network).")] = "svg",
    root: Root = Path("runs"),
) -> None:
    """Draw a run: score by seconds, layers, confusion matrix, calibration, and answers by length.

    Example: bertvision plot rotten-tomatoes --format png --out charts
    """
    from bertvision.lab.reports import save_charts

    resolved = resolve_run(run, root)
    paths, reasons = save_charts(resolved, out or resolved.directory / "charts", format)
    for path in paths:
        print(path)
    for name, reason in reasons.items():
        print(f"{name}: not drawn. {reason}")


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
