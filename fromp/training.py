"""One trainer for every method: the fitting of a task."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fromp.examples import Examples
from fromp.methods.base import Loss, Method, Part, Training
from fromp.model import Head, evaluating

SCHEDULES: dict[str, Callable[[float], float]] = {  # the share of a task that is done -> a factor on lr
    "constant": lambda done: 1.0,
    "linear-decay": lambda done: 1.0 - done,
}


@dataclass(frozen=True)
class Optimisation:
    """How a task is fitted."""

    epochs: int
    batch_size: int
    lr: float
    beta1: float = 0.9
    beta2: float = 0.999
    clip: float | None = None  # of the norm of the gradient of `mean nll + penalty`
    schedule: str = "constant"


class Fit:
    """The fitting of one task, step by step, from any step on."""

    def __init__(self, method: Method, training: Training, settings: Optimisation, seed: int) -> None:
        self.method, self.settings = method, settings
        self._batches = Shuffled(training, settings.batch_size, seed)
        self.num_steps = settings.epochs * self._batches.steps_per_epoch
        self._parameters = method.parameters()
        betas = (settings.beta1, settings.beta2)
        self.optimizer = torch.optim.Adam(self._parameters, settings.lr, betas, fused=True)
        self.step, self.loss = 0, Loss(torch.zeros(()), torch.zeros(()))

    def steps(self) -> Iterator[int]:
        """Train from the present step to the last, yielding the number of steps done."""
        settings, method = self.settings, self.method
        factor = SCHEDULES[settings.schedule]
        method.model.train()
        for batch in self._batches.batches(self.step, self.num_steps):
            for group in self.optimizer.param_groups:
                group["lr"] = settings.lr * factor(self.step / self.num_steps)
            self.optimizer.zero_grad()
            loss = method.loss(batch)
            (loss.data + loss.penalty).backward()
            if settings.clip is not None:
                nn.utils.clip_grad_norm_(self._parameters, settings.clip)
            self.optimizer.step()
            method.after_step()
            self.step += 1
            self.loss = Loss(loss.data.detach(), loss.penalty.detach())
            yield self.step

    def state(self) -> dict[str, Tensor]:
        """The optimiser's moments, by parameter."""
        return {
            f"{place}.{name}": value
            for place, moments in self.optimizer.state_dict()["state"].items()
            for name, value in moments.items()
        }

    def restore(self, step: int, tensors: dict[str, Tensor]) -> None:
        """Go on from `step`, with the moments that `state` gave then."""
        moments: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            place, name = key.split(".")
            moments.setdefault(int(place), {})[name] = value
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": moments})
        self.step = step


class Shuffled:
    """Minibatches of one or several sets of examples, in a new order each epoch that depends on the seed alone."""

    def __init__(self, training: Training, batch_size: int, seed: int) -> None:
        self._training, self._batch_size, self._seed = training, batch_size, seed
        self._sizes = [len(examples) for examples, _ in training]
        self.steps_per_epoch = -(-sum(self._sizes) // batch_size)

    def batches(self, start: int, stop: int) -> Iterator[list[Part]]:
        """The minibatches number `start` to `stop - 1`, counted over all epochs."""
        order = torch.empty(0, dtype=torch.long)
        for step in range(start, stop):
            epoch, place = divmod(step, self.steps_per_epoch)
            if place == 0 or step == start:
                generator = torch.Generator().manual_seed(hash_seed(self._seed, epoch))
                order = torch.randperm(sum(self._sizes), generator=generator)
            yield self._parts(order[place * self._batch_size : (place + 1) * self._batch_size])

    def _parts(self, chosen: Tensor) -> list[Part]:
        if len(self._training) == 1:
            examples, head = self._training[0]
            return [(*examples.take(chosen), head)]
        parts, first = [], 0
        for (examples, head), size in zip(self._training, self._sizes, strict=True):
            own = chosen[(chosen >= first) & (chosen < first + size)] - first
            if len(own):
                parts.append((*examples.take(own), head))
            first += size
        return parts


def accuracy(method: Method, examples: Examples, head: Head, task: int, batch_size: int = 2000) -> float:
    """The share of examples whose largest output is their label."""
    correct = 0
    with evaluating(method.model), torch.no_grad():
        for x, y in examples.batches(batch_size):
            correct += int((method.predict_outputs(x, head, task).argmax(1) == y).sum())
    return correct / len(examples)


def hash_seed(*numbers: int) -> int:
    """One seed out of several numbers, so that nearby ones give unrelated draws."""
    mixed = 0x9E3779B97F4A7C15
    for number in numbers:
        mixed = ((mixed ^ number) * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) % 2**64
        mixed ^= mixed >> 31
    return mixed % 2**63
