"""The paper's toy: pairs of Gaussian blobs in the plane, and its variations."""

from dataclasses import dataclass, replace
from typing import final

import torch

from fromp.foundation.examples import TensorExamples
from fromp.lab.benchmarks.streams import Stream, Task

Pairs = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class BlobShapes:
    """Centres and standard deviations of the two classes, task by task."""

    centres: tuple[Pairs, Pairs]
    deviations: tuple[Pairs, Pairs]
    examples_per_class: int = 2000


STANDARD_BLOBS = BlobShapes(
    centres=(
        ((0.0, 0.2), (0.6, 0.9), (1.3, 0.4), (1.6, -0.1), (2.0, 0.3)),
        ((0.45, 0.0), (0.7, 0.45), (1.0, 0.1), (1.7, -0.4), (2.3, 0.1)),
    ),
    deviations=(
        ((0.08, 0.22), (0.24, 0.08), (0.04, 0.2), (0.16, 0.05), (0.05, 0.16)),
        ((0.08, 0.16), (0.16, 0.08), (0.06, 0.16), (0.24, 0.05), (0.05, 0.22)),
    ),
)

TOY_VARIATIONS: dict[str, BlobShapes] = {
    "toy": STANDARD_BLOBS,
    "toy-less-data": replace(STANDARD_BLOBS, examples_per_class=200),
    "toy-more-data": replace(STANDARD_BLOBS, examples_per_class=20000),
    "toy-sixth-task": BlobShapes(
        centres=((*STANDARD_BLOBS.centres[0], (1.65, 0.1)), (*STANDARD_BLOBS.centres[1], (0.7, 0.25))),
        deviations=((*STANDARD_BLOBS.deviations[0], (0.14, 0.14)), (*STANDARD_BLOBS.deviations[1], (0.14, 0.14))),
    ),
    "toy-larger-deviation": BlobShapes(
        centres=STANDARD_BLOBS.centres,
        deviations=(
            ((0.12, 0.22), (0.24, 0.12), (0.07, 0.2), (0.16, 0.08), (0.08, 0.16)),
            ((0.12, 0.16), (0.16, 0.12), (0.08, 0.16), (0.24, 0.08), (0.08, 0.22)),
        ),
    ),
    "toy-overlapping": BlobShapes(
        centres=(
            ((0.0, 0.2), (0.6, 0.65), (1.3, 0.4), (1.6, -0.22), (2.0, 0.3)),
            ((0.45, 0.0), (0.7, 0.55), (1.0, 0.1), (1.7, -0.3), (2.3, 0.1)),
        ),
        deviations=STANDARD_BLOBS.deviations,
    ),
}


@final
class Blobs(Stream):
    """Two Gaussian blobs per task in the plane. A task is tested on its training data, as the paper reports."""

    num_outputs, input_shape = 2, (2,)

    def __init__(self, shapes: BlobShapes, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._tasks = []
        for index in range(len(shapes.centres[0])):
            parts = []
            for centres, deviations in zip(shapes.centres, shapes.deviations, strict=True):
                noise = torch.randn(shapes.examples_per_class, 2, generator=generator)
                parts.append(torch.tensor(centres[index]) + noise * torch.tensor(deviations[index]))
            y = torch.arange(2).repeat_interleave(shapes.examples_per_class)
            data = TensorExamples(torch.cat(parts), y)
            self._tasks.append(Task(f"task {index + 1}", data, data))

    def __len__(self) -> int:
        return len(self._tasks)

    def task(self, index: int) -> Task:
        return self._tasks[index]
