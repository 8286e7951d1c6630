"""Line charts as points of a drawing of 600 by 280: the page's template turns them into SVG."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 600, 280
LEFT, RIGHT, TOP, BOTTOM = 46, 588, 12, 244
MOST_TICKS = 8  # names under the axis
LEAST_SPAN = 10.0  # what an axis with a given end spans at least, so that noise does not look like change
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9")  # Okabe and Ito's


@dataclass(frozen=True)
class Point:
    """A value at its place, and its words for those who point at it."""

    x: float
    y: float
    said: str


@dataclass(frozen=True)
class Line:
    """The values of one month over time."""

    name: str
    colour: str
    points: Sequence[Point]

    @property
    def path(self) -> str:
        """What an SVG polyline takes."""
        return " ".join(f"{point.x:.1f},{point.y:.1f}" for point in self.points)


@dataclass(frozen=True)
class Chart:
    """Lines over months, with the marks of both axes: (place, text)."""

    title: str
    caption: str
    lines: Sequence[Line]
    across: Sequence[tuple[float, str]]
    up: Sequence[tuple[float, str]]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = RIGHT
    bottom: int = BOTTOM


def over_months(
    title: str, caption: str, names: Sequence[str], series: Sequence[Sequence[float | None]], top: float | None = None
) -> Chart | None:
    """series[i][j] is month j's value after month i; a month without values has no line. top: the axis ends there."""
    values = [value for row in series for value in row if value is not None]
    if not values:
        return None
    step = _step(max(values) if top is None else max(top - min(values), LEAST_SPAN))
    low = min(step * math.floor(min(values) / step), top - LEAST_SPAN) if top is not None else 0.0
    high = top if top is not None else step * math.ceil(max(values) / step)
    high = high if high > low else low + step

    def x(index: int) -> float:
        return LEFT + 14 + (RIGHT - LEFT - 28) * (index / (len(names) - 1) if len(names) > 1 else 0.5)

    def y(value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (value - low) / (high - low)

    lines = []
    for j, name in enumerate(names):
        found = [(i, row[j]) for i, row in enumerate(series) if j < len(row)]
        points = [Point(x(i), y(v), f"{name} after {names[i]}: {v:.4g}") for i, v in found if v is not None]
        if points:
            lines.append(Line(name, COLOURS[j % len(COLOURS)], points))
    every = math.ceil(len(names) / MOST_TICKS)
    marks = [low + step * k for k in range(1 + round((high - low) / step)) if low + step * k <= high * (1 + 1e-9)]
    return Chart(
        title, caption, lines, [(x(i), names[i]) for i in range(0, len(names), every)],
        [(y(mark), f"{mark:.6g}") for mark in marks],
    )  # fmt: skip


def _step(extent: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that divides an extent into at most five parts."""
    if extent <= 0:
        return 1.0
    power = 10 ** math.floor(math.log10(extent))
    return next(k * power for k in (0.2, 0.5, 1.0, 2.0) if extent / (k * power) <= 5)
