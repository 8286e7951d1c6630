"""Draws docs/figures/forgetting.gif: the toy stream learned without and with FROMP, as it happens."""

import argparse
import io
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from fromp.derivatives.model import evaluating
from fromp.lab.benchmarks.catalogue import benchmark
from fromp.lab.engine.run import Run
from fromp.lab.report.figures.plane import Boundary, draw_boundary
from fromp.lab.report.figures.style import COLOURS, STYLE
from fromp.lab.report.plane import boundary_of
from fromp.lab.results.plan import Plan

METHODS = {"finetune": "Plain training", "fromp": "With FROMP"}
FRAMES_PER_TASK = 9
MILLISECONDS, HOLD = 130, 2600  # of a frame, and of the last one
INK = "#2b323e"
SIZE, DPI = (9.0, 3.9), 100
SHADES = 96  # colours of the palette


@dataclass(frozen=True)
class Moment:
    """A network in the middle of its stream."""

    boundary: Boundary
    accuracy: list[float]  # on the training data of each task so far, as the paper reports the toy


def moments(method: str, seed: int, folder: Path) -> Iterator[Moment]:
    """A run of one method, seen a few times in each task."""
    plan = Plan.of("toy", method)
    run = Run(plan, benchmark("toy"), seed, folder / method)
    for progress in run.learn():
        every = progress.num_steps // FRAMES_PER_TASK
        if progress.finished or (progress.step and progress.step % every == 0 and progress.step < progress.num_steps):
            yield _moment(run, progress.task + (not progress.finished))


def _moment(run: Run, task: int) -> Moment:
    memory = [(m.inputs, m.labels) for m in run.method.memories if isinstance(m.inputs, torch.Tensor)]
    accuracy = []
    with evaluating(run.model), torch.no_grad():
        for index in range(task):
            x, y = run.stream.task(index).train.take(torch.arange(len(run.stream.task(index).train)))
            accuracy.append(float((run.model(x).argmax(1) == y).double().mean()))
    return Moment(boundary_of(run.stream, run.model, task, memory), accuracy)


@rc_context(STYLE)
def frame(both: dict[str, Moment]) -> Image.Image:
    """The two networks beside each other, and what each still knows of every task."""
    figure = Figure(figsize=SIZE, dpi=DPI, facecolor="white")
    for place, (method, moment) in enumerate(both.items()):
        left = 0.015 + place * 0.5
        axes = figure.add_axes((left, 0.2, 0.47, 0.68))
        draw_boundary(axes, moment.boundary)
        figure.text(left, 0.925, METHODS[method], fontsize=14, fontweight="bold", color=INK)
        mean = sum(moment.accuracy) / len(moment.accuracy)
        text = f"task {moment.boundary.task} of 5, average {100 * mean:.1f} %"
        figure.text(left + 0.47, 0.925, text, ha="right", fontsize=10.5, color=INK)
        _bars(figure.add_axes((left, 0.03, 0.47, 0.14)), moment.accuracy)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=DPI)
    return Image.open(file).convert("RGB")


def _bars(axes: Axes, accuracy: list[float]) -> None:
    """The accuracy on each task as the length of a bar, from chance to one."""
    for task in range(5):
        axes.barh(0, 0.92, left=task, height=1, color="#e8ebf0")
        if task < len(accuracy):
            known = max(0.0, 2 * accuracy[task] - 1)
            axes.barh(0, 0.92 * known, left=task, height=1, color=COLOURS[5] if known > 0.8 else COLOURS[1])
        said = f"task {task + 1}" + (f"\n{100 * accuracy[task]:.0f} %" if task < len(accuracy) else "")
        axes.text(task + 0.46, 0, said, ha="center", va="center", fontsize=8.5, color=INK)
    axes.set_xlim(0, 4.92)
    axes.set_ylim(-0.5, 0.5)
    axes.set_axis_off()


def write(path: Path, seed: int) -> None:
    """Learn both and write the animation, all frames with one palette."""
    with tempfile.TemporaryDirectory() as folder:
        runs = {method: list(moments(method, seed, Path(folder))) for method in METHODS}
    frames = [frame(dict(zip(runs, both, strict=True))) for both in zip(*runs.values(), strict=True)]
    palette = frames[-1].quantize(SHADES, dither=Image.Dither.NONE)
    few = [one.quantize(palette=palette, dither=Image.Dither.NONE) for one in frames]
    durations = [MILLISECONDS] * (len(few) - 1) + [HOLD]
    few[0].save(path, save_all=True, append_images=few[1:], duration=durations, loop=0, optimize=True)
    print(f"{path}: {len(few)} frames, {path.stat().st_size / 2**20:.2f} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/figures/forgetting.gif"))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    write(given.out, given.seed)
