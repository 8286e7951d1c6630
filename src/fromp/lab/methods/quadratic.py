"""Quadratic penalties on the weights: elastic weight consolidation and diagonal Laplace propagation."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from fromp.derivatives.model import as_head, device_of, named_weights, trainable
from fromp.foundation.errors import CheckpointError
from fromp.foundation.examples import TaskData, as_examples
from fromp.foundation.state import State, tensor, weights
from fromp.gp import ggn_diagonal
from fromp.lab.methods.base import Penalised
from fromp.lab.methods.card import CLASSES, DOMAIN, UNCLIPPED, MethodCard, register
from fromp.lab.settings import NotNegative, settings
from fromp.likelihoods import Likelihood
from fromp.protocol import no_penalty


class Quadratic(ABC):
    """strength / 2 (sum_w F_w (w - c_w)^2 + constant), F the sum of the past tasks' mean Fisher diagonals.

    The Fisher information is that of the model's own predictions, which is the GGN: exact, not sampled.
    """

    def __init__(self, model: nn.Module, likelihood: Likelihood, strength: float) -> None:
        self.model, self.likelihood, self.strength = model, likelihood, strength
        self.fisher: dict[str, Tensor] = {}
        self.centre: dict[str, Tensor] = {}
        self.constant = torch.zeros(())

    def penalty(self) -> Tensor:
        """The parabola at the model's weights: a scalar."""
        if not self.fisher:
            return no_penalty(self.model)
        parameters = named_weights(self.model)
        distances = [(f * (parameters[name] - self.centre[name]).square()).sum() for name, f in self.fisher.items()]
        return 0.5 * self.strength * (torch.stack(distances).sum() + self.constant)

    def end_task(self, data: TaskData, head: Sequence[int] | None = None) -> None:
        """Add the task's Fisher information, at its weights."""
        examples, parameters = as_examples(data), named_weights(self.model)
        held = {*self.fisher, *trainable(self.model)}
        names = tuple(name for name in parameters if name in held)
        total = ggn_diagonal(self.model, names, examples, self.likelihood, as_head(head))
        for name in names:
            self._add(name, total[name] / (len(examples) * examples.weight), parameters[name].detach().clone())

    @abstractmethod
    def _add(self, name: str, fisher: Tensor, weight: Tensor) -> None:
        """Take in one task's Fisher information at its weights."""

    def state_dict(self) -> State:
        """The parabola."""
        return {"fisher": dict(self.fisher), "centre": dict(self.centre), "constant": self.constant}

    def load_state_dict(self, state: State) -> None:
        """Return to the parabola that `state_dict` gave."""
        parameters = named_weights(self.model)
        fisher, centre = weights(state, "fisher", parameters), weights(state, "centre", parameters)
        if fisher.keys() != centre.keys():
            raise CheckpointError("the saved 'fisher' and 'centre' are of other weights; restore them from a copy.")
        self.fisher, self.centre = fisher, centre
        self.constant = tensor(state, "constant", floating=True).to(device_of(self.model))


@final
class EWC(Quadratic):
    """strength / 2 sum_s sum_w F_sw (w - w_s)^2, one penalty per past task (Kirkpatrick et al. 2017, Eq. 3).

    A sum of parabolas is a parabola: it is kept as one, around the mean of the w_s weighted by their F_s, so that
    a step costs the same however many tasks there are.
    """

    def _add(self, name: str, fisher: Tensor, weight: Tensor) -> None:
        before = self.fisher.get(name, torch.zeros_like(fisher))
        centre = self.centre.get(name, weight)
        together = before + fisher
        share = torch.where(together > 0, fisher / together, torch.ones_like(fisher))
        # F (w - c)^2 + F' (w - c')^2 = (F + F') (w - c'')^2 + F F' / (F + F') (c - c')^2
        self.constant = self.constant.to(fisher) + (before * share * (weight - centre).square()).sum()
        self.fisher[name], self.centre[name] = together, centre + share * (weight - centre)


@final
class DLP(Quadratic):
    """strength / 2 sum_w (sum_s F_sw) (w - w_(t-1))^2: Laplace propagation with diagonals (Smola et al. 2003)."""

    def _add(self, name: str, fisher: Tensor, weight: Tensor) -> None:
        self.fisher[name] = self.fisher.get(name, torch.zeros_like(fisher)) + fisher
        self.centre[name] = weight


@settings
class QuadraticSettings:
    """What EWC and DLP are built with."""

    strength: NotNegative = 1.0
    """lambda, the weight of the penalty beside the mean loss."""


register(
    MethodCard(
        name="ewc",
        title="EWC",
        paper="Kirkpatrick et al. 2017",
        keeps="the sum of the Fisher diagonals and their centre",
        step_cost="one pass over the weights",
        settings=QuadraticSettings,
        build=lambda model, likelihood, s, seed: Penalised(EWC(model, likelihood, s.strength)),
        colour=3,
        presets={
            **UNCLIPPED,
            "toy": {"strength": 10.0},
            "split-mnist": {"lr": 1e-3, "strength": 1e4},
            "split-mnist-domain": {**DOMAIN, "strength": 1e5},
            "split-mnist-class": {**CLASSES, "strength": 1e4},
            "permuted-mnist": {"lr": 3e-3, "strength": 10.0},
            "split-cifar": {"strength": 30.0},  # the middle one of three within half a point
            "split-cifar-11": {"strength": 30.0},  # chosen on the shorter stream
        },
    )
)
register(
    MethodCard(
        name="dlp",
        colour=7,
        title="DLP",
        paper="Smola et al. 2003",
        keeps="the sum of the Fisher diagonals and the last weights",
        step_cost="one pass over the weights",
        settings=QuadraticSettings,
        build=lambda model, likelihood, s, seed: Penalised(DLP(model, likelihood, s.strength)),
        presets={
            **UNCLIPPED,
            "toy": {"strength": 10.0},
            "split-mnist": {"lr": 1e-3, "strength": 1e4},
            "permuted-mnist": {"strength": 10.0},
        },
    )
)
