"""Searches as results to draw: the history of trials, and how much each setting mattered."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertvision.files import read_json
from bertvision.lab.studies import Figure


def find_searches(root: Path) -> Iterator[dict[str, Any]]:
    """Yield every finished search below `root`: title, rows of its table, and figures with their rows."""
    for path in sorted(Path(root).rglob("search-*/search.json")):
        yield described(read_json(path, "result of a search"), path.parent.parent.parent.name)


def described(record: dict[str, Any], task: str) -> dict[str, Any]:
    """Word one search."""
    rows, best = [], None
    for trial in record["history"]:
        setting = trial["setting"]
        score = trial["validation"]
        best = score if best is None or (score is not None and score > best) else best
        row = {
            "trial": trial["number"],
            "state": trial["state"],
            "validation": score,
            "head": setting.get("head") or "BERT",
        }
        row |= {
            "fraction": setting.get("fraction"),
            "rate": setting.get("learning_rate"),
            "epochs": setting.get("epochs"),
        }
        rows.append(row | {"seconds": trial["seconds"], "best so far": best})
    shares = [{"setting": name, "importance": share} for name, share in record.get("importance", {}).items()]
    history = [row for row in rows if row["validation"] is not None]
    figures = [
        (Figure(title="Trials, by validation", kind="points", x="trial", y="validation", color="state"), history)
    ]
    if shares:
        figures.append((Figure(title="Importance of settings", kind="bar", x="importance", y="setting"), shares))
    return {"title": f"{task}: {len(rows)} trials", "rows": rows, "figures": figures}
