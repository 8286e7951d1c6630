"""Decision boundaries of a run in the plane, from its snapshots."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fromp.derivatives.model import evaluating
from fromp.foundation.errors import CheckpointError
from fromp.lab.benchmarks.streams import Stream
from fromp.lab.benchmarks.toy import TOY_VARIATIONS
from fromp.lab.report.figures.plane import Boundary
from fromp.lab.report.figures.style import Array
from fromp.lab.results.record import Experiment, Snapshot
from fromp.likelihoods import Categorical

GRID = 480  # columns of the background
DOTS = 700  # shown of a task
MARGINS = (0.06, 0.12)  # shares of the width and the height


def in_plane(experiment: Experiment) -> bool:
    """Whether there is a plane to draw."""
    return experiment.benchmark in TOY_VARIATIONS


def boundaries(experiment: Experiment, seed: int) -> list[Boundary]:
    """What one seed's network predicted after each task; empty without snapshots."""
    snapshots = experiment.snapshots(seed)
    if not snapshots:
        return []
    try:
        stream, model = experiment.make(seed)
        return list(_boundaries(stream, model, snapshots))
    except (TypeError, RuntimeError) as error:
        raise CheckpointError(
            f"the snapshots in {experiment.path} do not fit its settings ({error}); run the same command again."
        ) from error


def boundary_of(stream: Stream, model: nn.Module, task: int, memory: Sequence[tuple[Tensor, Tensor]]) -> Boundary:
    """What a network predicts after or within a task, beside the data so far and what is remembered of it."""
    points = [_dots(one.train.x.double().numpy(), one.train.y.numpy()) for one in stream]  # type: ignore[union-attr]
    extent = _extent(np.concatenate([x for x, _ in points]))
    kept = [(x.double().numpy(), y.double().numpy()) for x, y in memory]
    return Boundary(task, extent, _probability(model, extent), points[:task], kept)


def _boundaries(stream: Stream, model: nn.Module, snapshots: Sequence[Snapshot]) -> Iterator[Boundary]:
    memory: list[tuple[Tensor, Tensor]] = []
    for snapshot in snapshots:
        model.load_state_dict(snapshot.weights)
        if kept := snapshot.memory:
            memory.append((kept["inputs"], kept["labels"]))
        yield boundary_of(stream, model, snapshot.task, memory)


def _probability(model: nn.Module, extent: tuple[float, float, float, float]) -> Array:
    left, right, bottom, top = extent
    rows = round(GRID * (top - bottom) / (right - left))
    across, up = torch.linspace(left, right, GRID), torch.linspace(bottom, top, rows)
    grid = torch.cartesian_prod(up, across).flip(1)
    with torch.no_grad(), evaluating(model):
        return Categorical().mean(model(grid))[:, 1].reshape(rows, GRID).double().numpy()


def _dots(x: Array, y: Array) -> tuple[Array, Array]:
    """Evenly spaced examples, so that both classes keep their share."""
    chosen = np.linspace(0, len(x) - 1, min(len(x), DOTS)).round().astype(int)
    return x[chosen], y[chosen]


def _extent(x: Array) -> tuple[float, float, float, float]:
    (left, bottom), (right, top) = x.min(0), x.max(0)
    across, up = MARGINS[0] * (right - left), MARGINS[1] * (top - bottom)
    return left - across, right + across, bottom - up, top + up
