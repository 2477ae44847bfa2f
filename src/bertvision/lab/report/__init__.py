"""Results of studies -> one page that works offline, pictures, tables for papers, numbers for programs."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from bertvision.errors import BertVisionError
from bertvision.files import atomic_write
from bertvision.lab.report import tables
from bertvision.lab.report.examples import misclassified
from bertvision.lab.report.figures import chart as draw
from bertvision.lab.report.figures import library, save_pictures, specification
from bertvision.lab.report.searches import find_searches
from bertvision.lab.studies import STUDIES, Result, find_results
from bertvision.runs import slug

GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")


def write_report(roots: Sequence[Path], out: Path, *, files: Path | None = None, examples: bool = True) -> list[Result]:
    """Write the page of all results below `roots`; with `files`, also pictures, Markdown, CSV and JSON there."""
    results = [result for root in roots for result in find_results(Path(root))]
    searches = [search for root in roots for search in find_searches(Path(root))]
    if not results and not searches:
        places = ", ".join(map(str, roots))
        raise BertVisionError(f"No results of studies below {places}. Make some: `bertvision study all --task mrpc`.")
    order = list(STUDIES)
    results.sort(key=lambda result: (result.task, order.index(result.study)))
    if files is not None:
        save_files(results, files)
    with atomic_write(out) as file:
        file.write(page(results, searches, examples=examples).encode())
    return results


def save_files(results: Sequence[Result], directory: Path) -> None:
    """Write every chart as SVG and PNG, every table as CSV and JSON, and all tables as one Markdown file."""
    taken: dict[str, int] = {}
    lines = ["# Results", ""]
    for result in results:
        stem = _stem(result, taken)
        tables.save(result, directory / stem)
        lines.append(tables.markdown(result))
        for number, figure in enumerate(result.figures):
            pictures = save_pictures(figure, result, directory / f"{stem}-{number + 1}")
            lines.append(f"![{figure.title}, {result.task}]({pictures[0].name})\n")
    with atomic_write(directory / "tables.md") as file:
        file.write("\n".join(lines).encode())


def _stem(result: Result, taken: dict[str, int]) -> str:
    """Name a result's files; a second one of the same task and study gets a number."""
    stem = slug(f"{result.task}-{result.study}")
    taken[stem] = taken.get(stem, 0) + 1
    return stem if taken[stem] == 1 else f"{stem}-{taken[stem]}"


def page(results: Sequence[Result], searches: Sequence[dict[str, Any]] = (), *, examples: bool = True) -> str:
    """Return the whole report as HTML."""
    specifications: dict[str, Any] = {}
    shown: dict[str, dict[str, Any]] = {}
    for number, result in enumerate(results):
        charts = [f"chart-{number}-{place}" for place in range(len(result.figures))]
        for chart, figure in zip(charts, result.figures, strict=True):
            specifications[chart] = specification(figure, result)
        task = shown.setdefault(result.task, {"name": result.task, "studies": [], "published": published(result.task)})
        task["studies"].append(
            {
                "id": f"{result.study}-{number}",
                "title": f"{result.study}: {STUDIES[result.study].summary}",
                "marks": "; ".join(result.marks),
                "words": result.words,
                "charts": charts,
                "encoder": result.encoder,
                "seeds": ", ".join(map(str, result.seeds)),
                "command": result.command,
            }
            | _table(tables.columns_of(result), tables.rows_of(result))
        )
    found = []
    for number, search in enumerate(searches):
        charts = [f"search-{number}-{place}" for place in range(len(search["figures"]))]
        for chart, (figure, rows) in zip(charts, search["figures"], strict=True):
            specifications[chart] = draw(figure, rows).to_dict()
        found.append({"title": search["title"], "charts": charts} | _table(list(search["rows"][0]), search["rows"]))
    environment = Environment(loader=PackageLoader("bertvision.lab.report", ""), autoescape=True)
    return environment.get_template("page.html.j2").render(
        title="BERTVision: " + (", ".join(shown) or "searches"),
        made=f"{len(results)} studies, {len(searches)} searches.",
        tasks=list(shown.values()),
        summary=[f"{result.task}, {result.study}: {result.words[0]}" for result in results if result.words],
        searches=found,
        errors=[_errors(part) for part in misclassified(results)] if examples else [],
        library=Markup(library()),
        # "<" would end the script early if a label held "</script>".
        specifications=Markup(json.dumps(specifications).replace("<", "\\u003c")),
    )


def _table(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Cells with what to show and what to sort by."""
    numbers = [n for n in names if any(isinstance(row.get(n), int | float) for row in rows)]
    cells = [
        {n: {"shown": tables.cell(n, row.get(n)), "value": "" if row.get(n) is None else row.get(n)} for n in names}
        for row in rows
    ]
    return {"columns": list(names), "rows": cells, "numbers": numbers}


def published(task: str) -> list[dict[str, Any]]:
    """Return the published figures of a task, as tables."""
    found = tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))
    parts = [*found.get(task, []), *(found["glue"] if task in GLUE or task == "squad2" else [])]
    tabled = []
    for part in parts:
        names = part["columns"]
        rows = [dict(zip(names, row, strict=True)) for row in part["rows"]]
        if part in found["glue"]:
            rows = [row for row in rows if row["task"].split()[0] == task]
        tabled.append({"title": part["title"]} | _table(names, rows))
    return tabled


def _errors(part: Mapping[str, Any]) -> dict[str, Any]:
    counts = "; ".join(
        f"{name}: {tables.cell('wrong', n) if isinstance(n, int) else n}" for name, n in part["counts"].items()
    )
    names = ["text", "right", "BERT", part["head"]]
    return {"title": f"{part['title']}: BERT and {part['head']}", "counts": counts} | _table(names, part["rows"])
