"""`python -m bench.plot`: images for bench/README.md, from the numbers in bench/out/bench.json.

The same numbers give the same bytes. Colours are such that they can be read on light and on dark pages.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bench.report import COMPARE, Report, read_report

FOLDER = Path(__file__).parents[1] / "docs" / "images"
_GREY = "#808080"
_OURS, _THEIRS = "#1f8f5f", ("#d9822b", "#8a63d2", "#3f7fcf")
_STYLE: dict[Any, Any] = {
    "axes.edgecolor": _GREY,
    "axes.labelcolor": _GREY,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": "sans-serif",
    "font.size": 11,
    "grid.alpha": 0.3,
    "grid.color": _GREY,
    "legend.frameon": False,
    "legend.labelcolor": _GREY,
    "svg.fonttype": "none",
    "svg.hashsalt": "corral",
    "text.color": _GREY,
    "xtick.color": _GREY,
    "ytick.color": _GREY,
}


def main() -> None:
    report = read_report()
    FOLDER.mkdir(exist_ok=True)
    for name, picture in pictures(report).items():
        path = FOLDER / f"bench-{name}.svg"
        path.write_bytes(picture)
        print(path)


def pictures(report: Report) -> dict[str, bytes]:
    """SVG files by their names, of what was measured; the first competitor is the one that is shown."""
    title = next((name for name in report if name.startswith(f"{COMPARE} ")), "")
    drawn: dict[str, bytes] = {}
    if "streams" in report:
        drawn["streams"] = _draw(lambda axes: draw_streams(axes, report["streams"]["series"]))
    if title:
        rows = [row for row in report[title]["rows"] if row["unit"] == "x"]
        competitor = title.removeprefix(f"{COMPARE} ")
        drawn["ratios"] = _draw(lambda axes: draw_ratios(axes, rows, competitor))
        drawn["gaps"] = _draw(lambda axes: draw_gaps(axes, report[title]["series"]["gaps"]))
    return drawn


def draw_streams(axes: Axes, series: dict[str, Any]) -> None:
    """Tokens per second over the number of streams, a line for each server."""
    lines: dict[str, list[float]] = series["lines"]
    competitors = iter(_THEIRS)
    for name, speeds in lines.items():
        if name == "plain libllama":
            look: dict[str, Any] = {"color": _GREY, "linestyle": "--"}
        elif name.startswith("Corral"):
            look = {"color": _OURS, "linestyle": "-" if name == "Corral" else ":"}
        else:
            look = {"color": next(competitors)}
        axes.plot(series["streams"], speeds, marker="o", markersize=5, linewidth=2, label=name, **look)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(series["streams"]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axes.set_ylim(bottom=0)
    axes.grid(axis="y")
    _title(axes, "Tokens per second, all streams together")
    axes.set_xlabel("streams")
    axes.legend()


def draw_ratios(axes: Axes, rows: list[dict[str, Any]], competitor: str) -> None:
    """How many times better than the competitor, a bar for each row, with a mark where it should be."""
    names = [row["name"] for row in rows]
    values = [_times_better(row, row["value"]) for row in rows]
    marks = {
        at: _times_better(row, row["target"]) for at, row in enumerate(rows) if row["target"] is not None
    }
    places = range(len(rows))
    axes.barh(places, [value - 1 for value in values], left=1, height=0.55, color=_OURS)
    for at, mark in marks.items():
        axes.vlines(mark, at - 0.4, at + 0.4, color=_GREY, linewidth=2)
    for at, value in enumerate(values):
        end, mark = max(1, value), marks.get(at, 0)
        is_in_the_way = end < mark < 1.8 * end
        axes.text(1.08 * (mark if is_in_the_way else end), at, f"{value:.1f} x", va="center")
    axes.axvline(1, color=_GREY, linewidth=1)
    axes.set_xscale("log")
    axes.set_xlim(0.9 * min(1, *values), 2.2 * max(*values, *marks.values()))
    axes.xaxis.set_major_locator(FixedLocator([1, 2, 5, 10, 20, 50, 100]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f} x"))
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.spines.left.set_visible(False)
    axes.tick_params(axis="y", length=0)
    _title(axes, f"Corral, times better than {competitor} on the same file (marks: what is wanted)")


def draw_gaps(axes: Axes, gaps: dict[str, dict[str, list[float]]]) -> None:
    """Pauses of a running stream, from when a long prompt was sent: as long as they are high."""
    for (name, seen), color in zip(gaps.items(), (_OURS, *_THEIRS), strict=False):
        starts = [at - gap / 1e3 for at, gap in zip(seen["times"], seen["gaps_ms"], strict=True)]
        axes.hlines(seen["gaps_ms"], starts, seen["times"], color=color, linewidth=3, label=name)
        axes.plot(seen["times"], seen["gaps_ms"], "o", color=color, markersize=4)
    axes.set_yscale("log")
    axes.set_ylim(bottom=1)
    axes.set_xlim(left=0)
    axes.yaxis.set_major_formatter(FuncFormatter(_duration))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y")
    _title(axes, "Pauses between the tokens of a running stream, while a long prompt is read")
    axes.set_xlabel("seconds since the prompt was sent")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2)


def _draw(draw: Callable[[Axes], None]) -> bytes:
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(8, 4.2), layout="constrained")
        draw(figure.add_subplot())
        file = io.BytesIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return file.getvalue()


def _title(axes: Axes, text: str) -> None:
    axes.figure.suptitle(text, x=0.02, ha="left", fontsize=12)


def _times_better(row: dict[str, Any], value: float) -> float:
    return 1 / value if row["is_upper"] else value


def _duration(ms: float, _: object) -> str:
    return f"{ms / 1e3:.0f} s" if ms >= 1e3 else f"{ms:.0f} ms"


if __name__ == "__main__":
    main()
