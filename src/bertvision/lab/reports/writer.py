"""Write the report of all studies and searches below some directories."""

from collections.abc import Sequence
from pathlib import Path

from bertvision.errors import BertVisionError
from bertvision.files import atomic_write
from bertvision.lab.reports import tables
from bertvision.lab.reports.figures import save_images
from bertvision.lab.reports.page import render_page
from bertvision.lab.reports.search_results import find_searches
from bertvision.lab.studies import STUDIES, StudyResult, find_results
from bertvision.runs import slug


def write_report(
    roots: Sequence[str | Path], out: str | Path, *, files: str | Path | None = None, examples: bool = True
) -> list[StudyResult]:
    """Write an HTML page of all results below `roots` and return the results of studies.

    Args:
        roots: Directories of runs.
        out: The file of the page. It needs no network and no server.
        files: A directory for the figures (SVG, PNG) and tables (Markdown, CSV, JSON) as files.
        examples: Whether to list examples that models get wrong. This reads the data again.
    """
    results = [result for root in roots for result in find_results(Path(root))]
    searches = [search for root in roots for search in find_searches(Path(root))]
    if not results and not searches:
        directories = ", ".join(map(str, roots))
        raise BertVisionError(
            f"No results of studies below {directories}. `bertvision study all --task mrpc` makes some."
        )
    order = list(STUDIES)
    results.sort(key=lambda result: (result.task, order.index(result.study)))
    if files is not None:
        save_files(results, Path(files))
    with atomic_write(Path(out)) as file:
        file.write(render_page(results, searches, examples=examples).encode())
    return results


def save_files(results: Sequence[StudyResult], directory: Path) -> None:
    """Write every figure as SVG and PNG, every table as CSV and JSON, and all tables to one Markdown file."""
    name_counts: dict[str, int] = {}
    lines = ["# Results", ""]
    for result in results:
        stem = _stem(result, name_counts)
        tables.save(result, directory / stem)
        lines.append(tables.markdown(result))
        for number, figure in enumerate(result.figures, 1):
            images = save_images(figure, result, directory / f"{stem}-{number}")
            lines.append(f"![{figure.title}, {result.task}]({images[0].name})\n")
    with atomic_write(directory / "tables.md") as file:
        file.write("\n".join(lines).encode())


def _stem(result: StudyResult, name_counts: dict[str, int]) -> str:
    """Return the name of a result's files; a second result of the same task and study gets a number."""
    stem = slug(f"{result.task}-{result.study}")
    name_counts[stem] = name_counts.get(stem, 0) + 1
    return stem if name_counts[stem] == 1 else f"{stem}-{name_counts[stem]}"
