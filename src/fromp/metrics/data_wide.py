"""SFR's metric: a deviation at the memory, carried over to all the data of its task by the kernel."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from fromp import gp
from fromp.derivatives.model import detached, evaluating, outputs, trainable
from fromp.foundation import inputs
from fromp.foundation.checked import positive
from fromp.foundation.examples import Examples
from fromp.likelihoods import Gaussian, Likelihood
from fromp.memory import Memory
from fromp.metrics.tied import Tied

CHUNK = 1000  # examples of the task at a time
AS_IT_IS = Gaussian()  # m = f: the kernel of the outputs themselves


@final
@dataclass(frozen=True)
class DataWide(Tied):
    """1/N sum_n sum_c Lambda_cc(x_n) (k_c(x_n, Z) k_c(Z, Z)^-1 d_c)^2 over the task's N examples, k = J J'.

    The deviation d at the memory Z is interpolated to every example, and costs there what the nll gains to second
    order, twice. With B = k(Z, X) Lambda k(X, Z) it is d' K^-1 B K^-1 d / N: the dual parameters of Scannell et al.
    2024, who divide by the number of points instead. A prior precision of the weights cancels.

    jitter: added to k(Z, Z), in units of the mean of its diagonal.
    """

    jitter: float = 1e-3

    def __post_init__(self) -> None:
        positive("jitter", self.jitter)

    def fixed(self, model: nn.Module, memory: Memory, examples: Examples, likelihood: Likelihood) -> Tensor:
        weights = detached(model, trainable(model))
        variance = {name: torch.ones_like(weight, requires_grad=False) for name, weight in weights.items()}
        z, head = memory.inputs, memory.head
        k = gp.kernel(model, z, AS_IT_IS, variance, head)
        factor = gp.cholesky(k, self.jitter * k.diagonal(dim1=-2, dim2=-1).mean(-1))
        total = torch.zeros_like(factor)
        for x, _ in examples.batches(CHUNK):
            x = inputs.move(x, k.device)
            across = gp.cross_kernel(model, z, x, AS_IT_IS, variance, head)
            with evaluating(model), torch.no_grad():
                precision = likelihood.hessian(outputs(model, x, head)).diagonal(dim1=-2, dim2=-1)  # (n, c)
            carried = torch.cholesky_solve(across.double(), factor) * precision.T.double().sqrt().unsqueeze(-2)
            total += carried @ carried.mT  # (c, i, j)
        return (total / len(examples)).to(next(iter(variance.values())).dtype)
