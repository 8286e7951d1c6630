"""A detector's statistic over minibatches."""

from collections.abc import Sequence

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fromp.lab.report.figures.style import COLOURS, INK, STYLE, Array, new


@rc_context(STYLE)
def boundaries(values: Array, label: str, true: Sequence[int], found: Sequence[int]) -> Figure:
    """A detector's statistic over minibatches, the true changes of task and those found."""
    figure, axes = new()
    draw_statistic(axes, values, true, found)
    axes.set_ylabel(label)
    if len(true) or len(found):
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def draw_statistic(axes: Axes, values: Array, true: Sequence[int], found: Sequence[int]) -> None:
    """A band from the lowest to the highest value of each stretch, and a mark where a task was found to begin."""
    stretches = np.array_split(np.arange(len(values)), min(len(values), 300))
    middle = [stretch.mean() for stretch in stretches]
    axes.fill_between(
        middle, [values[stretch].min() for stretch in stretches], [values[stretch].max() for stretch in stretches],
        color=COLOURS[0], alpha=0.3, linewidth=0, step="mid",
    )  # fmt: skip
    axes.plot(middle, [values[stretch].mean() for stretch in stretches], color=COLOURS[0], linewidth=1.1)
    for index, start in enumerate(true):
        axes.axvline(start, color=INK, linewidth=0.8, linestyle=":", label=None if index else "a task begins")
    if len(found):
        axes.scatter(found, values[np.array(found)], s=22, color=COLOURS[3], zorder=4, label="found")
    axes.set_xlim(0, len(values))
    axes.set_xlabel("minibatches")
