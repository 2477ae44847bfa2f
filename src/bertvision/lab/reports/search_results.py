"""Tables and figures of finished searches: the history of trials and the importance of each setting."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertvision.files import read_json
from bertvision.lab.studies import Figure


def find_searches(root: Path) -> Iterator[dict[str, Any]]:
    """Yield every finished search below `root`: its title, the rows of its table, and figures with their rows."""
    for path in sorted(Path(root).rglob("search-*/search.json")):
        yield describe_search(read_json(path, "result of a search"), path.parent.parent.parent.name)


def describe_search(record: dict[str, Any], task: str) -> dict[str, Any]:
    """Return the title, rows and figures of one search."""
    rows, best = [], None
    for trial in record["history"]:
        settings, score = trial["setting"], trial["validation"]
        best = score if best is None or (score is not None and score > best) else best
        rows.append(
            {
                "trial": trial["number"],
                "state": trial["state"],
                "validation": score,
                "head": settings.get("head") or "BERT",
                "fraction": settings.get("fraction"),
                "learning rate": settings.get("learning_rate"),
                "epochs": settings.get("epochs"),
                "seconds": trial["seconds"],
                "best so far": best,
            }
        )
    complete = [row for row in rows if row["validation"] is not None]
    title = "Validation score by trial"
    figures = [(Figure(title=title, kind="scatter", x="trial", y="validation", color="state"), complete)]
    importance = [{"setting": name, "importance": share} for name, share in record.get("importance", {}).items()]
    if importance:
        figures.append((Figure(title="Importance of settings", kind="dot", x="importance", y="setting"), importance))
    return {"title": f"{task}: {len(rows)} trials", "rows": rows, "figures": figures}
