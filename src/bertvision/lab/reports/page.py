"""Render the HTML page of a report."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from bertvision.lab.reports import tables
from bertvision.lab.reports.examples import misclassified
from bertvision.lab.reports.figures import draw, vega_library
from bertvision.lab.studies import STUDIES, StudyResult

GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
Charts = dict[str, dict[str, Any]]
"""Vega-Lite specifications, by the id of their HTML element."""


def render_page(
    results: Sequence[StudyResult],
    searches: Sequence[dict[str, Any]] = (),
    experiments: Sequence[dict[str, Any]] = (),
    *,
    examples: bool = True,
) -> str:
    """Return the whole report as HTML."""
    charts: Charts = {}
    tasks: dict[str, dict[str, Any]] = {}
    for number, result in enumerate(results):
        new_task = {"name": result.task, "studies": [], "published": published_results(result.task)}
        tasks.setdefault(result.task, new_task)["studies"].append(_study_section(number, result, charts))
    experiment_sections = [_experiment_section(number, found, charts) for number, found in enumerate(experiments)]
    search_sections = [_search_section(number, search, charts) for number, search in enumerate(searches)]
    environment = Environment(loader=PackageLoader("bertvision.lab.reports", ""), autoescape=True)
    return environment.get_template("page.html.j2").render(
        title="BERTVision: " + (", ".join({**tasks, **{found["task"]: None for found in experiments}}) or "searches"),
        counts=f"{len(experiments)} experiments, {len(results)} studies, {len(searches)} searches.",
        experiments=experiment_sections,
        tasks=list(tasks.values()),
        summary=[_finding(found) for found in experiments]
        + [f"{result.task}, {result.study}: {result.findings[0]}" for result in results if result.findings],
        searches=search_sections,
        errors=[_error_section(part) for part in misclassified(results)] if examples else [],
        library=Markup(vega_library()),
        # A label that contains "</script>" must not end the script.
        charts=Markup(json.dumps(charts).replace("<", "\\u003c")),
    )


def _study_section(number: int, result: StudyResult, charts: Charts) -> dict[str, Any]:
    """Return what the template shows of a study; its charts are added to `charts`."""
    ids = [f"chart-{number}-{index}" for index in range(len(result.figures))]
    for chart_id, figure in zip(ids, result.figures, strict=True):
        charts[chart_id] = draw(figure, result.rows, result.primary).to_dict()
    return {
        "id": f"{result.study}-{number}",
        "title": f"{result.study}: {STUDIES[result.study].summary}",
        "caveats": "; ".join(result.caveats),
        "findings": result.findings,
        "charts": ids,
        "encoder": result.encoder,
        "seeds": ", ".join(map(str, result.seeds)),
        "command": result.command,
    } | _table(tables.visible_columns(result), tables.visible_rows(result))


def _finding(experiment: Mapping[str, Any]) -> str:
    """Return the best head of an experiment as a sentence."""
    chosen = next((row for row in experiment["rows"] if row["model"].endswith(" *")), experiment["rows"][0])
    name = chosen["model"].removesuffix(" *")
    interval = f"{chosen['low']:.1f} to {chosen['high']:.1f}"
    return f"{experiment['title']}: {name} epochs, {experiment['primary']} {chosen['score']:.1f} ({interval})."


def _experiment_section(number: int, experiment: Mapping[str, Any], charts: Charts) -> dict[str, Any]:
    """Return what the template shows of an experiment; its charts are added to `charts`."""
    ids = [f"experiment-{number}-{index}" for index in range(len(experiment["figures"]))]
    for chart_id, (figure, rows) in zip(ids, experiment["figures"], strict=True):
        charts[chart_id] = draw(figure, rows, experiment["primary"]).to_dict()
    heading = {"title": experiment["title"], "primary": experiment["primary"], "source": experiment["source"]}
    classes = [_table(list(rows[0]), rows) for rows in experiment["classes"]]
    return heading | {"charts": ids, "classes": classes} | _table(list(experiment["rows"][0]), experiment["rows"])


def _search_section(number: int, search: Mapping[str, Any], charts: Charts) -> dict[str, Any]:
    """Return what the template shows of a search; its charts are added to `charts`."""
    ids = [f"search-{number}-{index}" for index in range(len(search["figures"]))]
    for chart_id, (figure, rows) in zip(ids, search["figures"], strict=True):
        charts[chart_id] = draw(figure, rows).to_dict()
    return {"title": search["title"], "charts": ids} | _table(list(search["rows"][0]), search["rows"])


def _error_section(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the template shows of the errors of two models."""
    counts = "; ".join(
        f"{name}: {tables.format_cell('wrong', count) if isinstance(count, int) else count}"
        for name, count in part["counts"].items()
    )
    columns = ["text", "right", "BERT", part["head"]]
    return {"title": f"{part['title']}: BERT and {part['head']}", "counts": counts} | _table(columns, part["rows"])


def _table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the cells of a table, each with its text and the value to sort by."""
    numeric = [name for name in columns if any(isinstance(row.get(name), int | float) for row in rows)]
    cells = [
        {
            name: {
                "text": tables.format_cell(name, row.get(name)),
                "value": "" if row.get(name) is None else row.get(name),
            }
            for name in columns
        }
        for row in rows
    ]
    return {"columns": list(columns), "rows": cells, "numeric": numeric}


def published_results(task: str) -> list[dict[str, Any]]:
    """Return the published results of a task, as tables for the template."""
    published = tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))
    parts = [*published.get(task, []), *(published["glue"] if task in GLUE or task == "squad2" else [])]
    shown = []
    for part in parts:
        rows = [dict(zip(part["columns"], row, strict=True)) for row in part["rows"]]
        if part in published["glue"]:
            rows = [row for row in rows if row["task"].split()[0] == task]
        shown.append({"title": part["title"]} | _table(part["columns"], rows))
    return shown
