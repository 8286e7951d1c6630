"""The floor and the ceilings: methods that do nothing about forgetting, or are spared it."""

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from fromp.derivatives.model import Head, outputs
from fromp.foundation import inputs
from fromp.foundation.examples import Examples, TensorExamples
from fromp.foundation.inputs import Inputs
from fromp.lab.methods.base import Method, TrainingSets, under
from fromp.likelihoods import Likelihood


@final
class Finetune(Method):
    """Plain training, task after task: the floor."""

    def end_task(self, data: Any, head: Sequence[int] | None = None) -> None:
        return

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {}, {}

    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        return


@final
class Joint(Method):
    """A fresh network trained on the data of all tasks so far: what there would be without forgetting.

    joint_from: the first task after which it is trained at all; before, the network stays as it was initialised.
    """

    def __init__(self, model: nn.Module, likelihood: Likelihood, joint_from: int = 1) -> None:
        super().__init__(model, likelihood)
        self._fresh, self._first = _copy(model), joint_from
        self.first_task_is_plain = self.trains_every_task = joint_from == 1

    def begin_task(self, examples: Examples, head: Head, past: TrainingSets) -> TrainingSets:
        self.model.load_state_dict(self._fresh)
        if len(past) + 1 < self._first:
            return []
        by_head: dict[Head, list[Examples]] = {}
        for data, of in [*past, (examples, head)]:
            by_head.setdefault(of, []).append(data)
        return [(_union(group), of) for of, group in by_head.items()]

    def end_task(self, data: Any, head: Sequence[int] | None = None) -> None:
        return

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {f"fresh.{name}": value for name, value in self._fresh.items()}, {}

    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        self._fresh = under(self.here(tensors), "fresh.")


@final
class Separate(Method):
    """A fresh network for each task, all of them kept: no forgetting, and no transfer either."""

    def __init__(self, model: nn.Module, likelihood: Likelihood) -> None:
        super().__init__(model, likelihood)
        self._fresh = _copy(model)
        self._networks: list[dict[str, Tensor]] = []

    def begin_task(self, examples: Examples, head: Head, past: TrainingSets) -> TrainingSets:
        self.model.load_state_dict(self._fresh)
        return [(examples, head)]

    def end_task(self, data: Any, head: Sequence[int] | None = None) -> None:
        self._networks.append(_copy(self.model))

    def predict_outputs(self, x: Inputs, head: Head, task: int) -> Tensor:
        weights = self._networks[task] if task < len(self._networks) else None
        return outputs(self.model, x, head, weights)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        networks = {"fresh": self._fresh} | {str(task): network for task, network in enumerate(self._networks)}
        tensors = {f"{task}.{name}": value for task, network in networks.items() for name, value in network.items()}
        return tensors, {"tasks": len(self._networks)}

    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        tensors = self.here(tensors)
        self._fresh = under(tensors, "fresh.")
        self._networks = [under(tensors, f"{task}.") for task in range(state["tasks"])]


def _copy(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _union(group: list[Examples]) -> Examples:
    if len(group) == 1:
        return group[0]
    parts = [data.take(torch.arange(len(data))) for data in group]
    return TensorExamples(inputs.concatenate([x for x, _ in parts]), torch.cat([y for _, y in parts]))
