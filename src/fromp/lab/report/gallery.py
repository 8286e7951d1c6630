"""The images that a run remembers, from its snapshots."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fromp.lab.methods import METHODS
from fromp.lab.results.record import Experiment, Snapshot
from fromp.memory import per_class

SHOWN = 30  # images per task


class Remembered(NamedTuple):
    """An image, its class, and its score if it was chosen by one."""

    image: NDArray[np.float64]  # (height, width, 3)
    label: int
    score: float | None


def remembered(experiment: Experiment) -> list[list[Remembered]]:
    """Some of each class, task by task, the highest scores first, of the middle seed; empty if it keeps no images."""
    tasks = [_images(snapshot, drawn(experiment)) for snapshot in experiment.snapshots(experiment.middle_seed)]
    return tasks if any(tasks) else []


def drawn(experiment: Experiment) -> bool:
    """Whether the images were drawn at random, not chosen by their scores."""
    return experiment.method in METHODS and METHODS[experiment.method].random_memory


def drawable(pictures: Tensor) -> NDArray[np.float64]:
    """Pictures (n, channels, height, width) with three channels, the last axis: (n, height, width, 3)."""
    return pictures.permute(0, 2, 3, 1).expand(-1, -1, -1, 3).double().numpy()


def _images(snapshot: Snapshot, at_random: bool) -> list[Remembered]:
    if snapshot.memory is None or snapshot.pictures is None:
        return []
    labels, scores, head = (snapshot.memory[name] for name in ("labels", "scores", "head"))
    chosen = per_class(scores, labels, min(len(labels), max(SHOWN, len(labels.unique()))))
    classes = [int(head[label]) if head else int(label) for label in labels[chosen]]  # a label is a place in its head
    return [
        Remembered(image, label, None if at_random else float(scores[i]))
        for image, label, i in zip(drawable(snapshot.pictures[chosen]), classes, chosen, strict=True)
    ]
