"""Draw figures of studies as Altair charts and save them as images."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt

from bertvision.files import atomic_write
from bertvision.lab.studies import Figure, StudyResult

HEIGHT, ROW_HEIGHT = 260, 22
MANY_SERIES = 4  # with more series, interval bands are drawn fainter because they overlap


def rows_to_draw(figure: Figure, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows that a figure shows, reduced to the columns that it uses."""
    columns = [name for name in (figure.x, figure.y, figure.color, figure.low, figure.high) if name]
    selected = [row for row in rows if figure.x in row and figure.y in row]
    selected = [row for row in selected if all(row.get(key) == value for key, value in figure.where.items())]
    return [{name: row.get(name) for name in columns} for row in selected]


def draw(figure: Figure, rows: Sequence[Mapping[str, Any]], primary: str = "score") -> Any:
    """Return a figure as an Altair chart; `primary` is the name of the metric in the column "score"."""
    values = rows_to_draw(figure, rows)
    columns = [name for name in (figure.color, figure.x, figure.y, figure.low, figure.high) if name]
    tooltip = [alt.Tooltip(_field(name), type=_type(values, name), format=_format(values, name)) for name in columns]
    color = alt.Undefined
    if figure.color:
        # Opaque, because the symbols of a legend would otherwise be as faint as the interval bands.
        legend = alt.Legend(symbolOpacity=1, labelLimit=300)
        color = alt.Color(_field(figure.color), type="nominal", title=figure.color, legend=legend)
    draw_layers = _dot_layers if figure.kind == "dot" else _line_layers
    layers = draw_layers(figure, alt.Chart(alt.Data(values=values)), values, primary, color=color, tooltip=tooltip)
    height = {"step": ROW_HEIGHT} if figure.kind == "dot" else HEIGHT
    return alt.layer(*layers).properties(title=figure.title, width="container", height=height)


def _dot_layers(
    figure: Figure, base: Any, values: Sequence[Mapping[str, Any]], primary: str, *, color: Any, tooltip: Any
) -> list[Any]:
    """Draw a point for each row, with its interval as a horizontal rule."""
    x = alt.X(_field(figure.x), type="quantitative", title=_axis_title(figure.x, primary), scale=alt.Scale(zero=False))
    y = alt.Y(_field(figure.y), type="nominal", sort="-x", title=None, axis=alt.Axis(labelLimit=300))
    layers = []
    if figure.low:
        ends = {"x": alt.X(_field(figure.low), type="quantitative"), "x2": alt.X2(_field(figure.high))}
        layers.append(base.mark_rule(opacity=0.6).encode(y=y, color=color, **ends))
    return [*layers, base.mark_point(filled=True, size=70).encode(x=x, y=y, color=color, tooltip=tooltip)]


def _line_layers(
    figure: Figure, base: Any, values: Sequence[Mapping[str, Any]], primary: str, *, color: Any, tooltip: Any
) -> list[Any]:
    """Draw lines (unless the figure is a scatter plot), points, and intervals as bands."""
    zero = alt.Scale(zero=figure.kind == "line")
    x = alt.X(_field(figure.x), type="quantitative", title=_axis_title(figure.x, primary), scale=zero)
    y = alt.Y(_field(figure.y), type="quantitative", title=_axis_title(figure.y, primary), scale=alt.Scale(zero=False))
    layers = []
    if figure.low:
        ends = {"y": alt.Y(_field(figure.low), type="quantitative"), "y2": alt.Y2(_field(figure.high))}
        many = len({row.get(figure.color) for row in values}) > MANY_SERIES
        layers.append(base.mark_area(opacity=0.05 if many else 0.15).encode(x=x, color=color, **ends))
    if figure.kind == "line":
        layers.append(base.mark_line().encode(x=x, y=y, color=color))
    return [*layers, base.mark_point(filled=True, size=60).encode(x=x, y=y, color=color, tooltip=tooltip)]


def _field(name: str) -> str:
    """Escape the characters of a column name that have a meaning in Vega."""
    for special in "\\.[]:":
        name = name.replace(special, "\\" + special)
    return name


def _type(rows: Sequence[Mapping[str, Any]], name: str) -> Any:
    numeric = all(isinstance(row[name], int | float) for row in rows if row[name] is not None)
    return "quantitative" if numeric else "nominal"


def _format(rows: Sequence[Mapping[str, Any]], name: str) -> Any:
    return ".4~g" if _type(rows, name) == "quantitative" else alt.Undefined


def _axis_title(name: str, primary: str) -> str:
    titles = {"score": primary, "fraction": "epochs of fine-tuning", "labels": "share of the labels"}
    return titles.get(name, name)


def save_images(figure: Figure, result: StudyResult, stem: Path) -> list[Path]:
    """Write a figure as SVG and PNG, named after `stem`."""
    import vl_convert  # imported here because it takes a second to load

    chart = draw(figure, result.rows, result.primary).properties(width=560).to_dict()
    contents = {".svg": vl_convert.vegalite_to_svg(chart).encode(), ".png": vl_convert.vegalite_to_png(chart, scale=2)}
    for suffix, content in contents.items():
        with atomic_write(stem.with_suffix(suffix)) as file:
            file.write(content)
    return [stem.with_suffix(suffix) for suffix in contents]


def vega_library() -> str:
    """Return the JavaScript library that draws charts. The page includes it, so that it needs no network."""
    import vl_convert

    bundle = vl_convert.javascript_bundle()  # pyright: ignore[reportCallIssue]
    return bundle.replace("</script", "<\\/script")
