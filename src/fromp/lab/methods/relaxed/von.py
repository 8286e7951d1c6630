"""Approximation 4: the variational update of appendices A.3 and B, in which the covariance comes with training."""

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor

from fromp.foundation.errors import FrompError


@final
class VON(torch.optim.Optimizer):
    """Variational online Newton with a diagonal covariance, v = 1 / (s + p), p what the prior adds to the precision:

        w  <- mu + v^(1/2) eps                         at which everything is computed; w = mu if it is not `sampled`
        s  <- (1 - beta) s + beta N diag GGN           the mean GGN of the minibatch, N examples in the task
        mu <- mu - lr v N grad (mean nll + penalty)

    The paper writes N / tau in the last line, and one beta in both: lr stands for beta / tau. Its p is delta, in the
    place of the functional prior's own term, -2 grad_Sigma E[log q~]. That term has to be there: with delta alone the
    first steps along the penalty, which is far steeper than the data's loss, are too long, and the network is lost.
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        precision: Mapping[str, Tensor],
        num_examples: int,
        lr: float,
        beta: float,
        sampled: bool,
        generator: torch.Generator,
    ) -> None:
        super().__init__(list(weights.values()), {"lr": lr})
        if not 0 < beta <= 1:
            raise FrompError(f"beta={beta} is the share of a minibatch in s; use a number above 0 and up to 1.")
        self.weights, self.num_examples = dict(weights), num_examples
        self.beta, self.sampled, self._generator = beta, sampled, generator
        for name, w in self.weights.items():
            self.state[w]["p"] = precision[name]  # part of a checkpoint, as s is
        self._mean: dict[str, Tensor] = {}  # mu, while a draw is in its place

    @torch.no_grad()
    def perturb(self) -> None:
        """Put a draw of q(w) in the place of mu until the next step; mu itself before s is known."""
        for name, w in self.weights.items() if self.sampled else ():
            if "s" not in self.state[w]:
                continue
            self._mean[name] = w.detach().clone()
            noise = torch.randn(w.shape, generator=self._generator).to(w)
            w.add_(noise * (self.state[w]["s"] + self.state[w]["p"]).rsqrt())

    def observe(self, ggn: Mapping[str, Tensor]) -> None:
        """Take in the mean GGN diagonal of a minibatch."""
        for name, w in self.weights.items():
            now = self.num_examples * ggn[name]
            known = self.state[w].get("s")
            self.state[w]["s"] = now if known is None else torch.lerp(known, now, self.beta)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for name, w in self.weights.items():
            if name in self._mean:
                w.copy_(self._mean[name])
            if w.grad is not None:
                v = 1 / (self.state[w]["s"] + self.state[w]["p"])
                w.sub_(self.param_groups[0]["lr"] * self.num_examples * v * w.grad)
        self._mean = {}

    def share(self) -> dict[str, Tensor]:
        """s of each weight: the task's GGN diagonal, as training has found it."""
        return {name: self.state[w]["s"] for name, w in self.weights.items()}
