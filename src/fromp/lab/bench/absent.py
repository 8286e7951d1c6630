"""What the kernels of classes that a task does not contain are worth, where all tasks share one head."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fromp import gp
from fromp.curvature import SignGGN
from fromp.derivatives.model import trainable
from fromp.foundation.examples import TensorExamples
from fromp.lab.bench.signs import FEATURES
from fromp.learn.networks import initialise, mlp
from fromp.likelihoods import Categorical
from fromp.prior import bounding_jitter

CLASSES, PRESENT, EXAMPLES, POINTS, STEPS, AFTERWARDS = 100, 10, 2000, 100, 300, 20
PRECISION, JITTERS, SMALL = 1e-3, (None, 1e-3, 1e-5), 1e-3  # SMALL: of the jitter, the largest trace of a kernel


def absent_errors() -> list[dict[str, Any]]:
    """One row for each jitter: errors of the penalty's gradient after some steps on the next ten classes.

    dropped: without the outputs that the task does not contain. ridge: with I / jitter in the place of
    (K + jitter I)^-1 for them. small: the share of outputs whose kernel has a trace below `SMALL` jitter, for which
    d' d / jitter is off by no more than that.
    """
    model = initialise(lambda: mlp(FEATURES, (100, 100), CLASSES), seed=0)
    x, y = _learn(model, 0, STEPS)
    memory = x[:POINTS]
    precision = gp.ggn_diagonal(model, trainable(model), TensorExamples(x, y), Categorical(), curvature=SignGGN())
    k = gp.kernel(model, memory, Categorical(), {name: 1 / (PRECISION + v) for name, v in precision.items()}).double()
    with torch.no_grad():
        f = model(memory)
        before = f.softmax(-1).T
    _learn(model, 1, AFTERWARDS)
    rows = []
    for jitter in JITTERS:
        added = bounding_jitter(Categorical(), f, POINTS) if jitter is None else torch.full((CLASSES,), jitter)
        added = added.double()
        exact = gp.inverse(k, added)
        ridge, dropped = exact.clone(), exact.clone()
        ridge[PRESENT:] = torch.eye(POINTS).double() / added[PRESENT:, None, None]
        dropped[PRESENT:] = 0
        truth, *others = (_gradient(model, memory, before, p) for p in (exact, dropped, ridge))
        off = [float((other - truth).norm() / truth.norm()) for other in others]
        trace = k.diagonal(dim1=-2, dim2=-1).sum(-1)
        small = float((trace < SMALL * added).double().mean())
        rows.append({"jitter": jitter, "dropped": off[0], "ridge": off[1], "small": small})
    return rows


def _learn(model: nn.Module, task: int, steps: int) -> tuple[Tensor, Tensor]:
    """Steps of Adam on ten classes of Gaussian blobs, and their examples."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(CLASSES, FEATURES, generator=generator)
    y = PRESENT * task + torch.arange(EXAMPLES) % PRESENT
    x = centres[y] + torch.randn(EXAMPLES, FEATURES, generator=generator)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(steps):
        chosen = torch.randint(EXAMPLES, (100,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(x[chosen]), y[chosen]).backward()
        optimizer.step()
    return x, y


def _gradient(model: nn.Module, memory: Tensor, before: Tensor, inverse: Tensor) -> Tensor:
    d = (model(memory).softmax(-1).T - before).double()
    distance = torch.einsum("ci,cij,cj->", d, inverse, d)
    return torch.cat([g.flatten() for g in torch.autograd.grad(distance, list(model.parameters()))])
