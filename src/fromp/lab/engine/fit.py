"""One trainer for every method: the fitting of a task."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from fromp.derivatives.model import Head, evaluating
from fromp.foundation.errors import CheckpointError
from fromp.foundation.examples import Examples
from fromp.foundation.state import State, field, moments, restore_moments
from fromp.lab.benchmarks.training import SCHEDULES, Training
from fromp.lab.methods.base import HeadBatch, Method, TrainingSets, by_set
from fromp.protocol import Loss


class Fit:
    """The fitting of one task, step by step, from any step on."""

    def __init__(
        self,
        method: Method,
        training: TrainingSets,
        settings: Training,
        seed: int,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        self.method, self.settings = method, settings
        self._batches = Shuffled(training, settings.batch_size, seed)
        self.num_steps = settings.epochs * self._batches.steps_per_epoch
        self.optimizer = optimizer or method.optimizer(settings)
        self.step, self.loss = 0, Loss(torch.zeros(()), torch.zeros(()))
        self.largest_norm = -math.inf  # the gradient's, before clipping; infinite if not measured

    def steps(self) -> Iterator[int]:
        """Train from the current step to the last, yielding the number of steps done."""
        settings = self.settings
        factor = SCHEDULES[settings.schedule]
        self.method.model.train()
        for batch in self._batches.batches(self.step, self.num_steps):
            for group in self.optimizer.param_groups:
                group["lr"] = settings.lr * factor(self.step / self.num_steps)
            self.loss = self.learn(batch)
            self.step += 1
            yield self.step

    def learn(self, batch: list[HeadBatch]) -> Loss:
        """One step."""
        loss = self.method.loss(batch)
        norm = loss.descend(self.optimizer, self.settings.clip_norm)
        self.method.after_step()
        self.largest_norm = max(self.largest_norm, norm)
        return loss.detach()

    @property
    def known_norm(self) -> float | None:
        """`largest_norm`, or None: JSON has no infinity."""
        return self.largest_norm if math.isfinite(self.largest_norm) else None

    def state_dict(self) -> State:
        """The step, the optimizer's moments and the largest norm so far."""
        return {"step": self.step, "moments": moments(self.optimizer), "largest_norm": self.known_norm}

    def load_state_dict(self, state: State) -> None:
        """Continue from where `state_dict` was taken."""
        step, norm = field(state, "step", int), field(state, "largest_norm", float, type(None))
        if not 0 <= step <= self.num_steps:
            raise CheckpointError(f"the saved step {step} is not one of {self.num_steps}; restore it from a copy.")
        restore_moments(self.optimizer, field(state, "moments", dict))
        self.step, self.largest_norm = step, math.inf if norm is None else norm


class Shuffled:
    """Minibatches of one or several sets of examples, in a new order each epoch that depends on the seed alone."""

    def __init__(self, training: TrainingSets, batch_size: int, seed: int) -> None:
        self._training, self._batch_size, self._seed = training, batch_size, seed
        self._sizes = [len(examples) for examples, _ in training]
        self.steps_per_epoch = -(-sum(self._sizes) // batch_size)

    def batches(self, start: int, stop: int) -> Iterator[list[HeadBatch]]:
        """The minibatches number `start` to `stop - 1`, counted over all epochs."""
        order = torch.empty(0, dtype=torch.long)
        for step in range(start, stop):
            epoch, index = divmod(step, self.steps_per_epoch)
            if index == 0 or step == start:
                generator = torch.Generator().manual_seed(hash_seed(self._seed, epoch))
                order = torch.randperm(sum(self._sizes), generator=generator)
            yield self._parts(order[index * self._batch_size : (index + 1) * self._batch_size])

    def _parts(self, chosen: Tensor) -> list[HeadBatch]:
        found = zip(self._training, by_set(chosen, self._sizes), strict=True)
        return [(*examples.take(own), head) for (examples, head), own in found if len(own)]


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
