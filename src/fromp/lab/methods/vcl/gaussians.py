"""Independent Gaussians over the weights, and the divergence between two of them."""

import torch
from torch import Tensor

from fromp.derivatives.model import Weights
from fromp.foundation.state import State, whole


class Gaussians:
    """Independent Gaussians over the weights, by name."""

    def __init__(self, mean: Weights, log_deviation: Weights) -> None:
        self.mean, self.log_deviation = dict(mean), dict(log_deviation)

    @classmethod
    def from_state(cls, state: State, like: Weights) -> "Gaussians":
        """The Gaussians that `state_dict` describes, over weights like these."""
        mean, log_deviation = (whole(state, key, like) for key in ("mean", "log_deviation"))
        return cls(mean, log_deviation)

    def state_dict(self) -> State:
        """Both moments of every weight."""
        return {"mean": self.mean, "log_deviation": self.log_deviation}

    @torch.no_grad()
    def copy_where(self, other: "Gaussians", where: Weights) -> None:
        """Become the other one, in place, wherever `where` is 1; a weight it does not name, altogether."""
        for mine, its in ((self.mean, other.mean), (self.log_deviation, other.log_deviation)):
            for name, value in mine.items():
                value.copy_(torch.where(where[name] > 0, its[name], value) if name in where else its[name])

    def copies(self) -> "Gaussians":
        """The same, independent of this."""
        return Gaussians(
            {name: value.detach().clone() for name, value in self.mean.items()},
            {name: value.detach().clone() for name, value in self.log_deviation.items()},
        )


def kl(q: Gaussians, p: Gaussians, share: Weights | None = None) -> Tensor:
    """KL(q || p) = sum_w log s_p / s_q + (s_q^2 + (m_q - m_p)^2) / (2 s_p^2) - 1/2, with a factor on each weight."""
    total = []
    for name, log_s in q.log_deviation.items():
        ratio = log_s - p.log_deviation[name]
        distance = (q.mean[name] - p.mean[name]).square() * (-2 * p.log_deviation[name]).exp()
        divergence = 0.5 * ((2 * ratio).exp() + distance - 1) - ratio
        total.append((divergence * share[name] if share and name in share else divergence).sum())
    return torch.stack(total).sum()
