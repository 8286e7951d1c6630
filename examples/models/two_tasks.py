"""Two tasks, one after the other, and what is left of the first: what every example of this folder prints."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

CLASSES, FEATURES, LENGTH = 4, 20, 6
SETTINGS = {"tau": 1.0, "memory_size": 40, "prior_precision": 1e-2, "jitter": 1e-2}


class Task(NamedTuple):
    """Examples to learn from, and others to test on."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


class Result(NamedTuple):
    """What the first task lost while the second was learned, and how well the second is known: shares of examples."""

    lost: float
    new: float


def blobs(number: int) -> Task:
    """Four classes around centres in 20 dimensions; in the second task the sign of every feature is the other one."""
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(1))
    parts = []
    for part in range(2):
        generator = torch.Generator().manual_seed(10 * number + part)
        y = torch.arange(400) % CLASSES
        x = centres[y] + 0.7 * torch.randn(len(y), FEATURES, generator=generator)
        parts += [x if number == 0 else -x, y]
    return Task(*parts)


def sequences(number: int) -> Task:
    """The same as sequences of six steps: what belongs to the class is spread over all of them."""

    def spread(x: Tensor, seed: int) -> Tensor:
        noise = torch.randn(len(x), LENGTH, FEATURES, generator=torch.Generator().manual_seed(seed))
        return x[:, None] / 2 + noise

    x, y, test_x, test_y = blobs(number)
    return Task(spread(x, number), y, spread(test_x, number + 10), test_y)


def fit(loss: Callable[[Tensor], Tensor], parameters: Iterable[Tensor], examples: int, steps: int = 100) -> None:
    """Adam on `loss(batch)`, where batch is 32 of the examples' places."""
    optimizer = torch.optim.Adam([p for p in parameters if p.requires_grad], 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(torch.randint(examples, (32,))).backward()
        optimizer.step()


def follow(tasks: list[Task], learn: Callable[[int], None], accuracy: Callable[[int], float]) -> Result:
    """Learn the tasks in order, and test the first one before and after the second."""
    learn(0)
    before = accuracy(0)
    for number in range(1, len(tasks)):
        learn(number)
    return Result(before - accuracy(0), accuracy(len(tasks) - 1))


def share(f: Tensor, y: Tensor) -> float:
    """The share of examples whose largest output is that of their class."""
    return float((f.argmax(1) == y).float().mean())


def show(run: Callable[[bool], Result]) -> None:
    """Print both numbers without the penalty, and with it."""
    for hold in (False, True):
        lost, new = run(hold)
        print(f"{'with' if hold else 'without'} the penalty: the first task loses {lost:.2f}, the second has {new:.2f}")
