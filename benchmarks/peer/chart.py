"""Charts of score by seconds, for light and for dark pages."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from peer.data import COLUMNS
from peer.plan import METHODS

FIELDS = ("method", "length", "score", "seconds", "low", "high")
THEMES: dict[str, dict[str, Any]] = {
    "": {"background": "white"},
    "-dark": {
        "background": "#14171b",
        "title": {"color": "#e6e8eb"},
        "style": {"guide-label": {"fill": "#a3abb6"}, "guide-title": {"fill": "#e6e8eb"}},
        "view": {"stroke": "#343a43"},
        "axis": {"gridColor": "#343a43", "domainColor": "#343a43", "tickColor": "#343a43"},
    },
}
"""The configuration of each theme, by the ending of the file."""


def draw(directory: Path, column: str, rows: Sequence[dict[str, Any]]) -> bool:
    """Draw score by seconds, one line for each method; return whether there are timed rows to draw."""
    timed = [{name: row[name] for name in FIELDS} for row in rows if row["seconds"] is not None]
    if not timed:
        return False
    base = alt.Chart(alt.Data(values=timed))
    x = alt.X("seconds", type="quantitative", scale=alt.Scale(type="log", nice=False, padding=12))
    y = alt.Y("score", type="quantitative", scale=alt.Scale(zero=False), title=COLUMNS[column].metric)
    names = [name for name in METHODS if any(row["method"] == name for row in timed)]
    scale = alt.Scale(domain=names, scheme="tableau20")
    color = alt.Color("method", type="nominal", scale=scale, legend=alt.Legend(labelLimit=300, symbolLimit=0))
    bars = base.mark_rule(opacity=0.4).encode(x=x, y=alt.Y("low", type="quantitative"), y2="high", color=color)
    lines, points = base.mark_line().encode(x=x, y=y, color=color), base.mark_point(filled=True)
    chart = alt.layer(bars, lines, points.encode(x=x, y=y, color=color))
    specification = chart.properties(width=560, height=320, title=f"{column}: score by seconds").to_dict()
    for ending, theme in THEMES.items():
        config = specification.get("config", {}) | theme
        svg = vl_convert.vegalite_to_svg(specification | {"config": config})
        (directory / f"peers-{column}{ending}.svg").write_text(svg)
    return True
