"""One style for all figures: colour-blind safe, text as text, readable on light and dark paper."""

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

# Okabe and Ito's colours, but for black and the yellow that white paper swallows.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
LINES = ("-", "--", ":")  # another line for each time round the colours
MARKERS = ("o", "s", "^", "D", "v", "P")
INK = "#68707c"  # text, axes and neutral bars: readable on white and on black
MEMORY = ("#004c78", "#c26a00")  # colours of the remembered points of the two classes, darker than their data
SHADES = LinearSegmentedColormap.from_list("shades", ["#e6eef5", "#8fbbdb", "#2f86bf", "#0a4a7d"])

STYLE: dict[Any, Any] = {
    "font.family": "sans-serif", "font.size": 9.5, "axes.titlesize": 9.5, "axes.labelsize": 9.5,
    "legend.fontsize": 8.5, "legend.frameon": False, "legend.handlelength": 2.2,
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.linewidth": 0.7, "xtick.major.width": 0.7, "ytick.major.width": 0.7,
    "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True,
    "grid.color": INK, "grid.alpha": 0.18, "grid.linewidth": 0.7,
    "lines.linewidth": 1.7, "lines.markersize": 4.5,
    "svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": "fromp",
}  # fmt: skip


class Look(NamedTuple):
    """How a method is drawn, in every figure alike."""

    colour: str
    line: str
    marker: str


def look(place: int) -> Look:
    """The look at a place: colours first, then other lines and markers."""
    rounds = place // len(COLOURS)
    line, marker = LINES[rounds % len(LINES)], MARKERS[(place + rounds) % len(MARKERS)]
    return Look(COLOURS[place % len(COLOURS)], line, marker)


PIXELS = 1600  # across a picture, at least: what a slide shows
SIZE = (4.6, 3.1)  # inches: two beside each other on a page, one on a phone
Array = NDArray[np.float64]


def save(figure: Figure, path: Path) -> list[Path]:
    """The figure as PDF, SVG and PNG at `path` with those suffixes; a directory that is missing is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = [path.with_name(f"{path.name}.{suffix}") for suffix in ("pdf", "svg", "png")]
    with rc_context(STYLE):
        for file in written:
            figure.savefig(file, dpi=max(200, math.ceil(PIXELS / figure.get_figwidth())))
    return written


def new(size: tuple[float, float] = SIZE) -> tuple[Figure, Axes]:
    """An empty figure of one panel, transparent."""
    figure = Figure(figsize=size, facecolor="none", layout="constrained")
    axes = figure.add_subplot()
    axes.set_facecolor("none")
    return figure, axes


def standard_error(values: Array) -> Array | None:
    """The standard error of the mean over runs, the first axis; None for a single run."""
    return values.std(0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else None


def plain(name: str) -> str:
    """A name that matplotlib does not take for mathematics, nor hide because it starts with an underscore."""
    return name.lstrip("_").replace("$", r"\$")
