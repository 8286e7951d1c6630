"""The images that a run remembers, from its snapshots."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fromp.memory import per_class
from fromp.report.experiment import Experiment, Snapshot

SHAPES = {784: (1, 28, 28), 64: (1, 8, 8), 3072: (3, 32, 32)}  # of inputs that come as rows of numbers
SHOWN = 30  # of a task


@dataclass(frozen=True)
class Remembered:
    """An image, its class and its score."""

    image: NDArray[np.float64]  # (height, width, 3)
    label: int
    score: float


def remembered(experiment: Experiment) -> list[list[Remembered]]:
    """The highest scores of each class, task by task, of the middle seed; empty if it keeps no images."""
    tasks = [_images(snapshot) for snapshot in experiment.snapshots(experiment.middle_seed)]
    return tasks if any(tasks) else []


def _images(snapshot: Snapshot) -> list[Remembered]:
    inputs = snapshot.tensors.get("inputs")
    shape = None if inputs is None else _shape(inputs)
    if inputs is None or shape is None:
        return []
    labels, scores = snapshot.tensors["labels"], snapshot.tensors["scores"]
    chosen = per_class(scores, labels, min(len(labels), max(SHOWN, len(labels.unique()))))
    images = inputs[chosen].reshape(-1, *shape).permute(0, 2, 3, 1).expand(-1, -1, -1, 3).double().numpy()
    return [
        Remembered(image, _class(snapshot, int(labels[i])), float(scores[i]))
        for image, i in zip(images, chosen, strict=True)
    ]


def _shape(inputs: Tensor) -> tuple[int, ...] | None:
    """Channels, height and width, or None if these are no images."""
    if inputs.ndim == 4 and inputs.shape[1] in (1, 3):
        return tuple(inputs.shape[1:])
    return SHAPES.get(inputs[0].numel()) if inputs.ndim == 2 else None


def _class(snapshot: Snapshot, label: int) -> int:
    """The output a label stands for, which is its place in the head if the task has one."""
    head = snapshot.state.get("head")
    return int(head[label]) if head else label
