"""Lower and upper bounds: plain training, and training without forgetting."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from fromp.derivatives.model import Head, outputs
from fromp.foundation import inputs
from fromp.foundation.examples import Examples, TaskData, TensorExamples
from fromp.foundation.inputs import Inputs
from fromp.foundation.state import State, field, whole
from fromp.lab.methods.base import Method, TrainingSets
from fromp.lab.methods.card import MethodCard, register
from fromp.likelihoods import Likelihood


class KeepsNothing(Method):
    """A method that keeps nothing of the past."""

    def end_task(self, data: TaskData, head: Sequence[int] | None = None) -> None:
        return

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:
        return


@final
class Finetune(KeepsNothing):
    """Plain training, task after task: the lower bound."""

    starts_plain = True


@final
class Joint(KeepsNothing):
    """The network trained once, at the last of `tasks` tasks, on the data of all: the upper bound.

    Until then it stays as it was initialised.
    """

    def __init__(self, model: nn.Module, likelihood: Likelihood, tasks: int) -> None:
        super().__init__(model, likelihood)
        self._tasks = tasks

    def begin_task(self, examples: Examples, head: Head, past: TrainingSets) -> TrainingSets:
        if len(past) + 1 < self._tasks:
            return []
        by_head: dict[Head, list[Examples]] = {}
        for data, of in [*past, (examples, head)]:
            by_head.setdefault(of, []).append(data)
        return [(_union(group), of) for of, group in by_head.items()]


@final
class Separate(Method):
    """A fresh network for each task, all of them kept: no forgetting, and no transfer either."""

    starts_plain = True

    def __init__(self, model: nn.Module, likelihood: Likelihood) -> None:
        super().__init__(model, likelihood)
        self._fresh = _copy(model)
        self._networks: list[dict[str, Tensor]] = []

    def begin_task(self, examples: Examples, head: Head, past: TrainingSets) -> TrainingSets:
        self.model.load_state_dict(self._fresh)
        return [(examples, head)]

    def end_task(self, data: TaskData, head: Sequence[int] | None = None) -> None:
        self._networks.append(_copy(self.model))

    def predict_outputs(self, x: Inputs, head: Head, task: int) -> Tensor:
        weights = self._networks[task] if task < len(self._networks) else None
        return outputs(self.model, x, head, weights)

    def state_dict(self) -> State:
        return {"fresh": self._fresh, "networks": list(self._networks)}

    def load_state_dict(self, state: State) -> None:
        like = self.model.state_dict()
        fresh = whole(state, "fresh", like)
        networks = {str(task): network for task, network in enumerate(field(state, "networks", list))}
        self._networks = [whole(networks, task, like) for task in networks]
        self._fresh = fresh


def _copy(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _union(group: list[Examples]) -> Examples:
    if len(group) == 1:
        return group[0]
    parts = [data.take(torch.arange(len(data))) for data in group]
    return TensorExamples(inputs.concatenate([x for x, _ in parts]), torch.cat([y for _, y in parts]))


FINETUNE = MethodCard(
    name="finetune",
    colour=13,
    title="plain training",
    paper="the floor",
    keeps="nothing",
    step_cost="nothing",
    build=lambda model, likelihood, s, seed: Finetune(model, likelihood),
)
SEPARATE = MethodCard(
    name="separate",
    colour=16,
    title="separate",
    paper="no transfer, no forgetting",
    keeps="one network per task",
    step_cost="nothing",
    build=lambda model, likelihood, s, seed: Separate(model, likelihood),
    needs_task_at_test=True,
    sequential=False,
)
JOINT = MethodCard(
    name="joint",
    colour=17,
    title="joint",
    paper="the ceiling",
    keeps="all data of all tasks",
    step_cost="nothing, but an epoch is as long as all tasks",
    build=lambda model, likelihood, s, seed: Joint(model, likelihood, s.tasks),
    sequential=False,
)
for card in (FINETUNE, SEPARATE, JOINT):
    register(card)
