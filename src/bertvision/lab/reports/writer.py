"""Write the report of all experiments, studies and searches below some directories."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertvision.errors import BertVisionError
from bertvision.files import atomic_write
from bertvision.lab.reports import tables
from bertvision.lab.reports.figures import save_images
from bertvision.lab.reports.page import render_page
from bertvision.lab.reports.run_results import find_experiments
from bertvision.lab.reports.search_results import find_searches
from bertvision.lab.studies import STUDIES, StudyResult, find_results
from bertvision.runs import slug


@dataclass(frozen=True, kw_only=True)
class ReportContents:
    """What a report shows."""

    studies: list[StudyResult]
    searches: list[dict[str, Any]]
    experiments: list[dict[str, Any]]

    def describe(self) -> str:
        """Return the number of results of each kind."""
        found = [(self.experiments, "experiment", "experiments"), (self.studies, "study", "studies")]
        found.append((self.searches, "search", "searches"))
        return ", ".join(f"{len(part)} {one if len(part) == 1 else several}" for part, one, several in found if part)


def write_report(
    roots: Sequence[str | Path], out: str | Path, *, files: str | Path | None = None, examples: bool = True
) -> ReportContents:
    """Write an HTML page of all results below `roots` and return what it shows.

    Args:
        roots: Directories of runs.
        out: The file of the page. It needs no network and no server.
        files: A directory for the figures (SVG, PNG) and tables (Markdown, CSV, JSON) as files.
        examples: Whether to list examples that models get wrong. This reads the data again.
    """
    contents = ReportContents(
        studies=[result for root in roots for result in find_results(Path(root))],
        searches=[search for root in roots for search in find_searches(Path(root))],
        experiments=[experiment for root in roots for experiment in find_experiments(Path(root))],
    )
    if not contents.describe():
        directories = ", ".join(map(str, roots))
        raise BertVisionError(
            f"No results below {directories}. `bertvision run --task mrpc` and `bertvision study all --task mrpc` "
            "make some."
        )
    order = list(STUDIES)
    contents.studies.sort(key=lambda result: (result.task, order.index(result.study)))
    if files is not None:
        save_files(contents, Path(files))
    with atomic_write(Path(out)) as file:
        page = render_page(contents.studies, contents.searches, contents.experiments, examples=examples)
        file.write(page.encode())
    return contents


def save_files(contents: ReportContents, directory: Path) -> None:
    """Write every figure of a study as SVG and PNG, every table as CSV, and all tables to one Markdown file."""
    name_counts: dict[str, int] = {}
    lines = ["# Results", ""]
    for result in contents.studies:
        stem = _stem(result, name_counts)
        tables.save(result, directory / stem)
        lines.append(tables.markdown(result))
        for number, figure in enumerate(result.figures, 1):
            images = save_images(figure, result, directory / f"{stem}-{number}")
            lines.append(f"![{figure.title}, {result.task}]({images[0].name})\n")
    for experiment in contents.experiments:
        tables.save_rows(experiment["rows"], directory / f"{slug(experiment['stem'])}.csv")
        title = f"{experiment['title']} ({experiment['primary']})"
        lines.append(tables.markdown_rows(title, experiment["rows"]))
    with atomic_write(directory / "tables.md") as file:
        file.write("\n".join(lines).encode())


def _stem(result: StudyResult, name_counts: dict[str, int]) -> str:
    """Return the name of a result's files; a second result of the same task and study gets a number."""
    stem = slug(f"{result.task}-{result.study}")
    name_counts[stem] = name_counts.get(stem, 0) + 1
    return stem if name_counts[stem] == 1 else f"{stem}-{name_counts[stem]}"
