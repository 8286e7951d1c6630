"""Streams of tasks: splits by class, permutations of pixels, rotations."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, final

import torch
import torch.nn.functional as F
from torch import Tensor

from fromp.derivatives.model import Head
from fromp.foundation.errors import DataError, FrompError
from fromp.foundation.examples import TensorExamples
from fromp.lab.data.arrays import Arrays, unit
from fromp.lab.settings import AtLeastOne, Share, settings


@dataclass(frozen=True)
class Task:
    """One task: its data, and the outputs that belong to it."""

    name: str
    train: TensorExamples
    test: TensorExamples
    head: Head = None


class Stream(ABC):
    """Tasks in the order they are learned. Each is made when it is asked for, so that a stream costs no memory."""

    num_outputs: int
    input_shape: tuple[int, ...]

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def task(self, place: int) -> Task:
        """The task with that index, from 0."""

    def picture(self, place: int, x: Tensor) -> Tensor | None:
        """Inputs of a task as images, (n, channels, height, width); None if they are not images."""
        return x if x.ndim == 4 and x.shape[1] in (1, 3) else None

    def __iter__(self) -> Iterator[Task]:
        return (self.task(place) for place in range(len(self)))


Groups: TypeAlias = Sequence[tuple[int, ...]]  # the classes of each task
# (groups, place) -> the head of the task there, and the label within it of each of its classes
Heads: TypeAlias = Callable[[Groups, int], tuple[Head, tuple[int, ...]]]


def head_a_task(groups: Groups, place: int) -> tuple[Head, tuple[int, ...]]:
    """Task-incremental: every task has outputs of its own, and the task label is given at test time."""
    first, count = sum(map(len, groups[:place])), len(groups[place])
    return tuple(range(first, first + count)), tuple(range(count))


def one_head(groups: Groups, place: int) -> tuple[Head, tuple[int, ...]]:
    """Domain-incremental: all tasks share their outputs, the k-th class of each is the k-th output."""
    return None, tuple(range(len(groups[place])))


def output_a_class(groups: Groups, place: int) -> tuple[Head, tuple[int, ...]]:
    """Class-incremental: every class has an output; no task label at test time."""
    return None, groups[place]


@final
class Split(Stream):
    """Each task is some of the classes."""

    def __init__(self, images: Arrays, groups: Sequence[Sequence[int]], heads: Heads = head_a_task) -> None:
        self._images, self._groups, self._heads = images, [tuple(group) for group in groups], heads
        layout = [heads(self._groups, place) for place in range(len(groups))]
        self.num_outputs = 1 + max(index for head, labels in layout for index in head or labels)
        self.input_shape = tuple(images.train_x.shape[1:])

    def __len__(self) -> int:
        return len(self._groups)

    def task(self, place: int) -> Task:
        group = self._groups[place]
        head, labels = self._heads(self._groups, place)
        name = "/".join(map(str, group)) if len(group) <= 3 else f"classes {group[0]}-{group[-1]}"
        return Task(name, self._examples(group, labels, True), self._examples(group, labels, False), head)

    def _examples(self, group: tuple[int, ...], labels: tuple[int, ...], train: bool) -> TensorExamples:
        x, y = _part(self._images, train)
        chosen = torch.isin(y, torch.tensor(group))
        which = (y[chosen, None] == torch.tensor(group)).long().argmax(1)
        return TensorExamples(unit(x[chosen]), torch.tensor(labels)[which])


@final
class Permuted(Stream):
    """Every task is all the data with its pixels in another order; the first is unpermuted."""

    def __init__(self, images: Arrays, num_tasks: int, num_outputs: int, seed: int) -> None:
        self._images, self._seed = images, seed
        self._num_tasks, self.num_outputs = num_tasks, num_outputs
        self.input_shape = (images.train_x[0].numel(),)

    def __len__(self) -> int:
        return self._num_tasks

    def order(self, place: int) -> Tensor:
        """Which pixel of the image each input of a task is: (pixels,)."""
        generator = torch.Generator().manual_seed(1000 * self._seed + place)
        pixels = self.input_shape[0]
        return torch.randperm(pixels, generator=generator) if place else torch.arange(pixels)

    def picture(self, place: int, x: Tensor) -> Tensor | None:
        return x[:, self.order(place).argsort()].reshape(-1, *self._images.train_x.shape[1:])

    def task(self, place: int) -> Task:
        order = self.order(place)
        train, test = (
            TensorExamples(unit(x.flatten(1)[:, order]), y)
            for x, y in (_part(self._images, True), _part(self._images, False))
        )
        return Task(f"permutation {place}" if place else "unpermuted", train, test)


@final
class Concatenated(Stream):
    """Multi-head streams, one after another, their heads side by side."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        self._streams = list(streams)
        self.num_outputs = sum(stream.num_outputs for stream in streams)
        self.input_shape = streams[0].input_shape

    def __len__(self) -> int:
        return sum(map(len, self._streams))

    def picture(self, place: int, x: Tensor) -> Tensor | None:
        for stream in self._streams:
            if place < len(stream):
                return stream.picture(place, x)
            place -= len(stream)
        raise IndexError(place)

    def task(self, place: int) -> Task:
        first = 0
        for stream in self._streams:
            if place < len(stream):
                task = stream.task(place)
                outputs = range(stream.num_outputs) if task.head is None else task.head
                return replace(task, head=tuple(first + index for index in outputs))
            place -= len(stream)
            first += stream.num_outputs
        raise IndexError(place)


@final
class Rotated(Stream):
    """Every task is all the images, rotated further and further about their centre."""

    def __init__(self, images: Arrays, degrees: Sequence[float], num_outputs: int) -> None:
        self._images, self._degrees, self.num_outputs = images, tuple(degrees), num_outputs
        self.input_shape = tuple(images.train_x.shape[1:])

    def __len__(self) -> int:
        return len(self._degrees)

    def task(self, place: int) -> Task:
        angle = self._degrees[place]
        train, test = (
            TensorExamples(_rotate(unit(x), angle), y)
            for x, y in (_part(self._images, True), _part(self._images, False))
        )
        return Task(f"{angle:g} degrees", train, test)


@settings
class StreamOptions:
    """Which part of a benchmark's stream is learned and tested."""

    tasks: AtLeastOne
    """Tasks that are learned, from the first on."""
    validation: Share = 0.0
    """Share of the training data to test on instead of the test data, for choosing settings."""

    def part_of(self, stream: Stream, seed: int) -> Stream:
        """The part of a stream that they say."""
        if self.tasks > len(stream):
            raise FrompError(f"tasks={self.tasks} is more than the benchmark has; use at most {len(stream)}.")
        held_out = Validation(stream, self.validation, seed) if self.validation else stream
        return FirstTasks(held_out, self.tasks)


@final
class Validation(Stream):
    """Another stream that is tested on a part of its training data, held out: for choosing settings."""

    def __init__(self, stream: Stream, share: float, seed: int) -> None:
        self._stream, self._share, self._seed = stream, share, seed
        self.num_outputs, self.input_shape = stream.num_outputs, stream.input_shape

    def __len__(self) -> int:
        return len(self._stream)

    def picture(self, place: int, x: Tensor) -> Tensor | None:
        return self._stream.picture(place, x)

    def task(self, place: int) -> Task:
        task = self._stream.task(place)
        order = torch.randperm(len(task.train), generator=torch.Generator().manual_seed(self._seed))
        held_out = round(self._share * len(order))
        if not 0 < held_out < len(order):
            raise DataError(
                f"validation={self._share:g} holds out {held_out} of the {len(order)} examples of {task.name}; "
                "use a share that leaves some to learn from and some to test on."
            )
        test, train = (TensorExamples(*task.train.take(part)) for part in (order[:held_out], order[held_out:]))
        return replace(task, train=train, test=test)


@final
class FirstTasks(Stream):
    """The first few tasks of another stream, for the same network."""

    def __init__(self, stream: Stream, num_tasks: int) -> None:
        self._stream, self._num_tasks = stream, num_tasks
        self.num_outputs, self.input_shape = stream.num_outputs, stream.input_shape

    def __len__(self) -> int:
        return self._num_tasks

    def picture(self, place: int, x: Tensor) -> Tensor | None:
        return self._stream.picture(place, x)

    def task(self, place: int) -> Task:
        return self._stream.task(place)


def _rotate(x: Tensor, degrees: float) -> Tensor:
    """Images (n, channels, height, width) turned counter-clockwise, zero outside."""
    angle = math.radians(degrees)
    turn = torch.tensor([[math.cos(angle), -math.sin(angle), 0.0], [math.sin(angle), math.cos(angle), 0.0]])
    grid = F.affine_grid(turn.expand(1, 2, 3), [1, *x.shape[1:]], align_corners=False)
    parts = [F.grid_sample(part, grid.expand(len(part), -1, -1, -1), align_corners=False) for part in x.split(5000)]
    return torch.cat(parts)


def _part(images: Arrays, train: bool) -> tuple[Tensor, Tensor]:
    return (images.train_x, images.train_y) if train else (images.test_x, images.test_y)
