"""Synaptic intelligence: each weight held in place by how much its path has lowered the loss."""

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from fromp.derivatives.model import Head, trainable
from fromp.foundation.examples import Examples
from fromp.lab.methods.base import HeadBatch, Loss, Method, TrainingSets, under
from fromp.likelihoods import Likelihood


@final
class SI(Method):
    """strength sum_w Omega_w (w - w_(t-1))^2, Omega_w = sum_s max(0, omega_sw) / (Delta_sw^2 + damping).

    omega_sw is the path integral of task s: minus the gradient times the step, summed over the steps (Zenke et al.
    2017, Eqs. 3 to 5). The gradient is that of the minibatch's data loss alone, without the penalty and before any
    clipping; the step is what the optimiser made of it.
    """

    records = ("path.",)

    def __init__(self, model: nn.Module, likelihood: Likelihood, strength: float, damping: float) -> None:
        super().__init__(model, likelihood)
        self.strength, self.damping = strength, damping
        weights = self._weights()
        self.importance = {name: torch.zeros_like(w) for name, w in weights.items()}  # Omega
        self.path = {name: torch.zeros_like(w) for name, w in weights.items()}  # omega of the task at hand
        self.start = {name: w.clone() for name, w in weights.items()}  # w_(t-1)
        self._before: dict[str, Tensor] = {}
        self._gradient: dict[str, Tensor] = {}

    def begin_task(self, examples: Examples, head: Head, past: TrainingSets) -> TrainingSets:
        weights = {name: w.clone() for name, w in self._weights().items()}
        self.start |= weights
        self.path = {name: torch.zeros_like(w) for name, w in weights.items()}
        for name, w in weights.items():  # one that was frozen until now has no importance yet
            self.importance.setdefault(name, torch.zeros_like(w))
        return super().begin_task(examples, head, past)

    def loss(self, batch: Sequence[HeadBatch]) -> Loss:
        loss = self.data_loss(batch)
        weights = {name: w for name, w in self.model.named_parameters() if w.requires_grad}
        gradients = torch.autograd.grad(loss, list(weights.values()), materialize_grads=True)
        self._gradient = dict(zip(weights, gradients, strict=True))
        self._before = {name: w.detach().clone() for name, w in weights.items()}
        # The network has been differentiated: what goes on has the same value and the same gradient, and is linear.
        linear = [(g * (weights[name] - self._before[name])).sum() for name, g in self._gradient.items()]
        return Loss(loss.detach() + torch.stack(linear).sum(), self.penalty())

    def after_step(self) -> None:
        for name, weight in self._weights().items():
            self.path[name] -= self._gradient[name] * (weight - self._before[name])

    def penalty(self) -> Tensor:
        weights = dict(self.model.named_parameters())
        distances = [(o * (weights[n] - self.start[n]).square()).sum() for n, o in self.importance.items()]
        return self.strength * torch.stack(distances).sum()

    def end_task(self, data: Any, head: Sequence[int] | None = None) -> None:
        for name, weight in self._weights().items():
            moved = (weight - self.start[name]).square()
            self.importance[name] += self.path[name].clamp_min(0) / (moved + self.damping)
            self.start[name] = weight.clone()
            self.path[name] = torch.zeros_like(weight)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        kept = {"importance": self.importance, "path": self.path, "start": self.start}
        return {f"{kind}.{name}": value for kind, of in kept.items() for name, value in of.items()}, {}

    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        tensors = {name: value.clone() for name, value in self.here(tensors).items()}  # the path is added to in place
        self.importance, self.path, self.start = (
            under(tensors, f"{kind}.") for kind in ("importance", "path", "start")
        )

    def _weights(self) -> dict[str, Tensor]:
        parameters = dict(self.model.named_parameters())
        return {name: parameters[name].detach() for name in trainable(self.model)}
