"""Draw the chart of the README from benchmarks/results/peers.json: docs/chart-light.svg and docs/chart-dark.svg.

python benchmarks/readme_chart.py
"""

import json
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert
from peer.chart import THEMES

RESULTS = Path("benchmarks/results/peers.json")
METHODS = {
    "bertvision-run": "bertvision",
    "fine-tuning": "full fine-tuning",
    "lora": "LoRA",
    "setfit": "SetFit",
    "bitfit": "BitFit",
    "embedding": "sentence embedding + logistic regression",
}
COLORS = ["#d1495b", "#2f7fd0", "#5aa469", "#8e6bbf", "#b08a2e", "#7d8590"]
ENDINGS = {"": "light", "-dark": "dark"}


def timed_rows() -> list[dict[str, Any]]:
    """Return the timed rows of the methods that the chart shows."""
    rows = json.loads(RESULTS.read_text())["rows"]
    shown = ("task", "length", "score", "seconds")
    return [
        {"method": METHODS[row["method"]]} | {name: row[name] for name in shown}
        for row in rows
        if row["method"] in METHODS and row["seconds"] is not None
    ]


def draw() -> None:
    """Write both files."""
    rows = timed_rows()
    names = [name for name in METHODS.values() if any(row["method"] == name for row in rows)]
    legend = alt.Legend(orient="bottom", title=None, labelLimit=300, symbolOpacity=1, columns=3)
    color = alt.Color("method:N", scale=alt.Scale(domain=names, range=COLORS[: len(names)]), legend=legend)
    panels = []
    for task in dict.fromkeys(row["task"] for row in rows):
        base = alt.Chart(alt.Data(values=[row for row in rows if row["task"] == task])).encode(
            x=alt.X("seconds:Q", title="seconds"),
            y=alt.Y("score:Q", title="", scale=alt.Scale(zero=False)),
            color=color,
        )
        ours = alt.condition("datum.method == 'bertvision'", alt.value(160), alt.value(45))
        layers = base.mark_line(opacity=0.6) + base.mark_point(filled=True, opacity=1).encode(size=ours)
        panels.append(layers.properties(title=task, width=165, height=150))
    specification = alt.hconcat(*panels).to_dict() if len(panels) <= 4 else alt.concat(*panels, columns=4).to_dict()
    for ending, name in ENDINGS.items():
        config = specification.get("config", {}) | THEMES[ending] | {"legend": {"labelColor": _text(ending)}}
        svg = vl_convert.vegalite_to_svg(specification | {"config": config})
        Path(f"docs/chart-{name}.svg").write_text(svg)


def _text(ending: str) -> str:
    return "#e6e8eb" if ending else "#1d1f23"


if __name__ == "__main__":
    draw()
