"""Synaptic intelligence: each weight held in place by how much its path has lowered the loss."""

from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor, nn

from fromp.derivatives.model import Head, named_weights, trainable
from fromp.foundation.errors import CheckpointError
from fromp.foundation.examples import Examples, TaskData
from fromp.foundation.state import State, weights
from fromp.lab.methods.base import HeadBatch, Penalised, TrainingSets
from fromp.lab.methods.card import UNCLIPPED, MethodCard, register
from fromp.lab.settings import NotNegative, Positive, settings
from fromp.likelihoods import Likelihood
from fromp.protocol import Loss


@final
class SI:
    """strength sum_w Omega_w (w - w_(t-1))^2, Omega_w = sum_s max(0, omega_sw) / (Delta_sw^2 + damping).

    omega_sw is the path integral of task s: minus the gradient times the step, summed over the steps (Zenke et al.
    2017, Eqs. 3 to 5). The gradient is that of the minibatch's data loss alone; the step is what the optimiser made of
    it. A loop of one's own calls `after_step` once per optimiser step:

        loss = cross_entropy(model(x), y) + si.penalty()
        loss.backward()
        optimizer.step()
        si.after_step()
    """

    def __init__(self, model: nn.Module, likelihood: Likelihood, strength: float, damping: float) -> None:
        self.model, self.likelihood, self.strength, self.damping = model, likelihood, strength, damping
        self.importance: dict[str, Tensor] = {}  # Omega
        self.path: dict[str, Tensor] = {}  # omega of the current task
        self.start: dict[str, Tensor] = {}  # w_(t-1)
        self._before: dict[str, Tensor] = {}  # the weights at the last call of `penalty`
        self.begin_task()

    def begin_task(self) -> None:
        """Start a path at the current weights, including those that were frozen until now."""
        for name, weight in self._weights().items():
            self.start[name] = weight.clone()
            self.path[name] = torch.zeros_like(weight)
            self.importance.setdefault(name, torch.zeros_like(weight))

    def penalty(self) -> Tensor:
        """The parabola at the model's weights: a scalar."""
        parameters = named_weights(self.model)
        self._before = {name: weight.clone() for name, weight in self._weights().items()}
        distances = [(o * (parameters[n] - self.start[n]).square()).sum() for n, o in self.importance.items()]
        return self.strength * torch.stack(distances).sum()

    def after_step(self, gradients: Mapping[str, Tensor] | None = None) -> None:
        """Continue the path: minus the data loss's gradient, before the step, times the step.

        gradients: that of the data loss alone. Without it, it is what `backward` left less the penalty's own; a
        gradient that was clipped in between counts as it was clipped.
        """
        for name, weight in self._weights().items():
            gradient = self._gradient(name) if gradients is None else gradients[name]
            self.path[name] -= gradient * (weight - self._before[name])

    def end_task(self, data: TaskData, head: Sequence[int] | None = None) -> None:
        """Turn the path into importance, and start another one."""
        for name, weight in self._weights().items():
            moved = (weight - self.start[name]).square()
            self.importance[name] += self.path[name].clamp_min(0) / (moved + self.damping)
            self.start[name] = weight.clone()
            self.path[name] = torch.zeros_like(weight)

    def state_dict(self) -> State:
        """Importance, path and start of every weight."""
        return {key: dict(getattr(self, key)) for key in ("importance", "path", "start")}

    def load_state_dict(self, state: State) -> None:
        """Return to what `state_dict` gave."""
        parameters = named_weights(self.model)
        found = {key: weights(state, key, parameters) for key in ("importance", "path", "start")}
        if missing := [name for values in found.values() for name in trainable(self.model) if name not in values]:
            raise CheckpointError(f"nothing was saved of the weight '{missing[0]}'; restore it from a copy.")
        for key, values in found.items():  # copies, because the path is added to in place
            setattr(self, key, {name: value.clone() for name, value in values.items()})

    def _gradient(self, name: str) -> Tensor:
        found = self.model.get_parameter(name).grad
        if found is None:
            return torch.zeros_like(self._before[name])
        own = 2 * self.strength * self.importance[name] * (self._before[name] - self.start[name])
        return found.detach() - own

    def _weights(self) -> dict[str, Tensor]:
        parameters = named_weights(self.model)
        return {name: parameters[name].detach() for name in trainable(self.model)}


@final
class SIMethod(Penalised):
    """SI in a run: the gradient is that of the data loss before any clipping."""

    starts_plain = False  # its path through the first task is its own

    def __init__(self, regulariser: SI) -> None:
        super().__init__(regulariser)
        self._si = regulariser
        self._gradients: dict[str, Tensor] = {}

    def begin_task(self, examples: Examples, head: Head, past: TrainingSets) -> TrainingSets:
        self._si.begin_task()
        return super().begin_task(examples, head, past)

    def loss(self, batch: Sequence[HeadBatch]) -> Loss:
        loss = self.data_loss(batch)
        trained = {name: w for name, w in named_weights(self.model).items() if w.requires_grad}
        gradients = torch.autograd.grad(loss, list(trained.values()), materialize_grads=True)
        self._gradients = dict(zip(trained, gradients, strict=True))
        # The network has been differentiated; this has the same value and gradient, and is linear.
        linear = [(g * (trained[name] - trained[name].detach())).sum() for name, g in self._gradients.items()]
        return Loss(loss.detach() + torch.stack(linear).sum(), self.penalty())

    def after_step(self) -> None:
        self._si.after_step(self._gradients)


@settings
class Settings:
    """What SI is built with."""

    strength: NotNegative = 1.0
    """c, the weight of the penalty beside the mean loss."""
    damping: Positive = 1e-3
    """xi, which keeps the importance of a weight that hardly moved finite."""


register(
    MethodCard(
        name="si",
        title="SI",
        paper="Zenke et al. 2017",
        keeps="one importance per weight, and the last weights",
        step_cost="a few passes over the weights",
        settings=Settings,
        build=lambda model, likelihood, s, seed: SIMethod(SI(model, likelihood, s.strength, s.damping)),
        colour=4,
        presets={
            **UNCLIPPED,
            "toy": {"strength": 1.0},
            "split-mnist": {"lr": 1e-3, "strength": 1.0},
            "permuted-mnist": {"strength": 0.6, "damping": 0.1},
            "split-cifar": {"strength": 0.03},
            "split-cifar-11": {"strength": 0.03},  # chosen on the shorter stream
        },
    )
)
