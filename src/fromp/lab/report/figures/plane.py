"""Decision boundaries in the plane."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from fromp.lab.report.figures.style import COLOURS, INK, MEMORY, STYLE, Array


@dataclass(frozen=True)
class Boundary:
    """What a network in the plane predicts after some task, the data so far and what is remembered of it."""

    task: int  # how many were learned
    extent: tuple[float, float, float, float]  # left, right, bottom, top of the grid
    probability: Array  # P(class 1) on a grid whose first row is the bottom
    points: Sequence[tuple[Array, Array]]  # inputs (n, 2) and labels (n,) of each task so far
    memory: Sequence[tuple[Array, Array]]


@rc_context(STYLE)
def decision_boundary(boundary: Boundary) -> Figure:
    """One panel of `toy_strip`, transparent, without a caption."""
    figure = Figure(figsize=(4.4, 4.4 * _aspect(boundary)))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    draw_boundary(axes, boundary)
    return figure


@rc_context(STYLE)
def toy_strip(boundaries: Sequence[Boundary], captions: Sequence[str] | None = None) -> Figure:
    """Panels in the plane beside each other; without captions, the paper's toy figure, which says after which task."""
    width, gap = 4.0, 0.12
    height, count = width * _aspect(boundaries[0]), len(boundaries)
    whole = count * width + (count - 1) * gap
    caption = 0.36
    figure = Figure(figsize=(whole, height + caption), facecolor="none")
    said = captions or [f"after task {boundary.task}" for boundary in boundaries]
    for index, (boundary, text) in enumerate(zip(boundaries, said, strict=True)):
        left = index * (width + gap) / whole
        axes = figure.add_axes((left, caption / (height + caption), width / whole, height / (height + caption)))
        draw_boundary(axes, boundary)
        axes.text(0.5, -0.04, text, transform=axes.transAxes, ha="center", va="top", color=INK, fontsize=13)
    return figure


def draw_boundary(axes: Axes, boundary: Boundary) -> None:
    """Tints that grow with confidence, the line where neither class is likelier, dots, and large outlined memory."""
    left, right, bottom, top = boundary.extent
    p = boundary.probability
    tint = np.empty((*p.shape, 4))
    tint[..., :3] = np.where((p > 0.5)[..., None], to_rgb(COLOURS[1]), to_rgb(COLOURS[0]))
    tint[..., 3] = 0.05 + 0.23 * np.abs(2 * p - 1)
    axes.imshow(tint, extent=boundary.extent, origin="lower", interpolation="nearest", aspect="auto")
    if p.min() < 0.5 < p.max():
        axes.contour(p, levels=[0.5], extent=boundary.extent, colors=[INK], linewidths=1.3)
    for task, (x, y) in enumerate(boundary.points, start=1):
        alpha = 0.75 if task == boundary.task else 0.3
        colours = np.where(y == 1, COLOURS[1], COLOURS[0])
        # Thousands of vector dots would make a file of megabytes; everything else stays vectors.
        axes.scatter(x[:, 0], x[:, 1], s=2.2, c=colours, alpha=alpha, linewidths=0, zorder=2, rasterized=True)
    for x, y in boundary.memory:
        for label, (colour, marker) in enumerate(zip(MEMORY, ("o", "s"), strict=True)):
            of_class = x[y == label]
            axes.scatter(
                of_class[:, 0], of_class[:, 1], s=42, c=colour, marker=marker, edgecolors="white", linewidths=1.1,
                zorder=4,
            )  # fmt: skip
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    axes.set_axis_off()


def _aspect(boundary: Boundary) -> float:
    left, right, bottom, top = boundary.extent
    return (top - bottom) / (right - left)
