"""Answers to "What are some ways to choose memorable examples?": scores, of which `per_class` keeps the highest.

The paper's, the trace of Lambda, looks at one example at a time, and at no Jacobian.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from fromp import gp
from fromp.derivatives.model import Head, Weights
from fromp.foundation.inputs import Inputs
from fromp.likelihoods import Gaussian, Likelihood
from fromp.memory import share

AS_IT_IS = Gaussian()  # m = f: the kernel of the outputs themselves


@dataclass(frozen=True)
class Candidates:
    """The examples of a task that has just been learned, and how many of them may stay."""

    model: nn.Module
    likelihood: Likelihood
    variance: Weights  # diagonal of Sigma, this task included
    inputs: Inputs  # (n, ...)
    classes: Tensor  # (n,)
    head: Head
    size: int
    generator: torch.Generator

    def quotas(self) -> Iterator[tuple[Tensor, int]]:
        """The examples of each class, and how many of them stay."""
        present = self.classes.unique()
        members = [(self.classes == c).nonzero().flatten() for c in present]
        yield from zip(members, share(self.size, [*map(len, members)]), strict=True)

    def latent(self) -> tuple[Tensor, Tensor]:
        """f and J_c Diag(v) J_c' at each example: (n, c), (n, c)."""
        return gp.marginals(self.model, self.inputs, AS_IT_IS, self.variance, self.head)

    def at_random(self) -> Tensor:
        """A number for each that has nothing to do with it: (n,)."""
        return torch.rand(len(self.classes), generator=self.generator).to(self.classes.device)


Points: TypeAlias = Callable[[Candidates], Tensor]  # -> (n,)


def trace(of: Candidates) -> Tensor:
    """Tr Lambda(x): the paper's."""
    return of.likelihood.trace(of.latent()[0])


def leverage(of: Candidates) -> Tensor:
    """sum_c Lambda_cc(x) J_c(x) Diag(v) J_c(x)': how much of its own fit an example decides, one GP per output."""
    f, k = of.latent()
    return (of.likelihood.hessian(f).diagonal(dim1=-2, dim2=-1) * k).sum(-1)


def centres(of: Candidates) -> Tensor:
    """The greedy k-centres of each class: always the example that is furthest from those kept, from a random one on.

    Distances are those of the kernel of f, |J(x) - J(z)|^2 in Diag(v). The score falls with the order of the choice.
    """
    k = gp.kernel(of.model, of.inputs, AS_IT_IS, of.variance, of.head).sum(0)
    scores = torch.zeros(len(of.classes)).to(of.classes.device)
    for members, quota in of.quotas():
        own = k[members][:, members]
        nearest = torch.full_like(own[0], torch.inf)
        chosen = int(torch.randint(len(members), (), generator=of.generator))
        for place in range(quota):
            scores[members[chosen]] = of.size - place
            nearest = torch.minimum(nearest, own.diagonal() + own[chosen, chosen] - 2 * own[chosen])
            nearest[chosen] = -torch.inf
            chosen = int(nearest.argmax())
    return scores


def mixed(of: Candidates) -> Tensor:
    """Half of each class by the trace of Lambda, half at random."""
    scores, by_trace = of.at_random(), trace(of)
    for members, quota in of.quotas():
        scores[members[by_trace[members].argsort(descending=True, stable=True)[: (quota + 1) // 2]]] += 1.0
    return scores


POINTS: dict[str, Points] = {
    "trace": trace, "random": Candidates.at_random, "leverage": leverage, "centres": centres, "mixed": mixed
}  # fmt: skip
