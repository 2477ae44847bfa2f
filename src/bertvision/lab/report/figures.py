"""Rows and a Figure -> an Altair chart; charts -> pictures. The only file that imports altair."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt

from bertvision.files import atomic_write
from bertvision.lab.studies import Figure, Result

HEIGHT, STEP = 260, 22
CROWD = 4  # bands that can lie over one another and still be told apart


def drawn(figure: Figure, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows a figure is about, with the columns it needs."""
    needed = [name for name in (figure.x, figure.y, figure.color, figure.low, figure.high) if name]
    chosen = [row for row in rows if figure.x in row and figure.y in row]
    chosen = [row for row in chosen if all(row.get(key) == value for key, value in figure.where.items())]
    return [{name: row.get(name) for name in needed} for row in chosen]


def chart(figure: Figure, rows: Sequence[Mapping[str, Any]], primary: str = "score") -> Any:
    """Draw lines, bars or points with their intervals."""
    values = drawn(figure, rows)
    data = alt.Data(values=values)
    x, y = alt.X(_field(figure.x)), alt.Y(_field(figure.y))
    named = [name for name in (figure.color, figure.x, figure.y, figure.low, figure.high) if name]
    tips = [alt.Tooltip(_field(name), type=_type(values, name), format=_format(values, name)) for name in named]
    base = alt.Chart(data)
    # Opaque: the symbols of a legend would be as faint as the bands.
    legend = alt.Legend(symbolOpacity=1, labelLimit=300)
    color = alt.Undefined
    if figure.color:
        color = alt.Color(_field(figure.color), type="nominal", title=figure.color, legend=legend)
    if figure.kind == "bar":
        x = x.type("quantitative").title(_worded(figure.x, primary)).scale(zero=False)
        y = y.type("nominal").sort("-x").title(None).axis(labelLimit=300)
        marks = base.mark_point(filled=True, size=70).encode(x=x, y=y, color=color, tooltip=tips)
        layers = [marks]
        if figure.low:
            ends = {"x": alt.X(_field(figure.low), type="quantitative"), "x2": alt.X2(_field(figure.high))}
            layers.insert(0, base.mark_rule(opacity=0.6).encode(y=y, color=color, **ends))
        return alt.layer(*layers).properties(title=figure.title, width="container", height={"step": STEP})
    x = x.type("quantitative").title(_worded(figure.x, primary)).scale(zero=figure.kind != "points")
    y = y.type("quantitative").title(_worded(figure.y, primary)).scale(zero=False)
    layers = []
    if figure.low:
        ends = {"y": alt.Y(_field(figure.low), type="quantitative"), "y2": alt.Y2(_field(figure.high))}
        several = len({row.get(figure.color) for row in values}) > CROWD
        layers.append(base.mark_area(opacity=0.05 if several else 0.15).encode(x=x, color=color, **ends))
    if figure.kind == "line":
        layers.append(base.mark_line().encode(x=x, y=y, color=color))
    layers.append(base.mark_point(filled=True, size=60).encode(x=x, y=y, color=color, tooltip=tips))
    return alt.layer(*layers).properties(title=figure.title, width="container", height=HEIGHT)


def _field(name: str) -> str:
    """Name a column so that Vega does not read its dots, brackets and colons."""
    for special in "\\.[]:":
        name = name.replace(special, "\\" + special)
    return name


def _type(rows: Sequence[Mapping[str, Any]], name: str) -> Any:
    numeric = all(isinstance(row[name], int | float) for row in rows if row[name] is not None)
    return "quantitative" if numeric else "nominal"


def _format(rows: Sequence[Mapping[str, Any]], name: str) -> Any:
    return ".4~g" if _type(rows, name) == "quantitative" else alt.Undefined


def _worded(name: str, primary: str) -> str:
    words = {"score": primary, "fraction": "epochs of fine-tuning", "labels": "share of the labels"}
    return words.get(name, name)


def specification(figure: Figure, result: Result) -> dict[str, Any]:
    """Return the chart as Vega-Lite, for a page."""
    return chart(figure, result.rows, result.primary).to_dict()


def save_pictures(figure: Figure, result: Result, stem: Path) -> list[Path]:
    """Write a chart as SVG and PNG."""
    import vl_convert  # a second to load, and only pictures and pages need it

    fixed = chart(figure, result.rows, result.primary).properties(width=560).to_dict()
    contents = {".svg": vl_convert.vegalite_to_svg(fixed).encode(), ".png": vl_convert.vegalite_to_png(fixed, scale=2)}
    for suffix, content in contents.items():
        with atomic_write(stem.with_suffix(suffix)) as file:
            file.write(content)
    return [stem.with_suffix(suffix) for suffix in contents]


def library() -> str:
    """Return the JavaScript that draws charts, so that a page needs no network."""
    import vl_convert

    bundle = vl_convert.javascript_bundle()  # pyright: ignore[reportCallIssue]
    return bundle.replace("</script", "<\\/script")
