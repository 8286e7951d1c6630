"""The images that a run remembers, from its snapshots."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fromp.foundation.errors import FrompError
from fromp.foundation.state import State
from fromp.lab.benchmarks.catalogue import BENCHMARKS
from fromp.lab.benchmarks.streams import Stream
from fromp.lab.methods.registry import METHODS
from fromp.lab.results.record import Experiment, Snapshot
from fromp.memory import per_class

SHAPES = {784: (1, 28, 28), 64: (1, 8, 8), 3072: (3, 32, 32)}  # of inputs that come as rows of numbers
SHOWN = 30  # of a task


@dataclass(frozen=True)
class Remembered:
    """An image, its class, and its score if it was chosen by one."""

    image: NDArray[np.float64]  # (height, width, 3)
    label: int
    score: float | None


def remembered(experiment: Experiment) -> list[list[Remembered]]:
    """Some of each class, task by task, the highest scores first, of the middle seed; empty if it keeps no images."""
    seed = experiment.middle_seed
    stream = _stream(experiment, seed)
    tasks = [_images(snapshot, stream, drawn(experiment)) for snapshot in experiment.snapshots(seed)]
    return tasks if any(tasks) else []


def drawn(experiment: Experiment) -> bool:
    """Whether the images were drawn at random, not chosen by their scores."""
    return experiment.method in METHODS and METHODS[experiment.method].drawn


def drawable(pictures: Tensor) -> NDArray[np.float64]:
    """Pictures (n, channels, height, width) with three channels, the last axis: (n, height, width, 3)."""
    return pictures.permute(0, 2, 3, 1).expand(-1, -1, -1, 3).double().numpy()


def _stream(experiment: Experiment, seed: int) -> Stream | None:
    """The stream, which knows how its inputs look; None if it is not one of ours, or its data cannot be had."""
    if experiment.benchmark not in BENCHMARKS:
        return None
    try:
        return experiment.make(seed)[0]
    except (FrompError, OSError, TypeError):
        return None


def _images(snapshot: Snapshot, stream: Stream | None, at_random: bool) -> list[Remembered]:
    if (memory := snapshot.memory) is None:
        return []
    inputs = memory["inputs"]
    pictures = _as_they_are(inputs) if stream is None else stream.picture(snapshot.task - 1, inputs)
    if pictures is None:
        return []
    labels, scores = memory["labels"], memory["scores"]
    chosen = per_class(scores, labels, min(len(labels), max(SHOWN, len(labels.unique()))))
    return [
        Remembered(image, _class(memory, int(labels[i])), None if at_random else float(scores[i]))
        for image, i in zip(drawable(pictures[chosen]), chosen, strict=True)
    ]


def _as_they_are(inputs: Tensor) -> Tensor | None:
    """Inputs as images (n, channels, height, width), by their size, or None if these are none."""
    if inputs.ndim == 4 and inputs.shape[1] in (1, 3):
        return inputs
    shape = SHAPES.get(inputs[0].numel()) if inputs.ndim == 2 else None
    return None if shape is None else inputs.reshape(-1, *shape)


def _class(memory: State, label: int) -> int:
    """The output a label stands for, which is its place in the head if the task has one."""
    head = memory["head"]
    return int(head[label]) if head else label
