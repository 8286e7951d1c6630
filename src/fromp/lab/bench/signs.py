"""How far the GGN from random signs is off, and how much faster it is, by the number of classes."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fromp import gp
from fromp.curvature import Curvature, ExactGGN, SignGGN
from fromp.derivatives.model import evaluating, trainable
from fromp.foundation.examples import TensorExamples
from fromp.lab.bench.timing import interleaved
from fromp.learn.networks import initialise, mlp
from fromp.likelihoods import Categorical

FEATURES, EXAMPLES, POINTS, DRAWS = 64, 1000, 50, 3
PRECISION, JITTER, MOVED = 1e-3, 1e-3, 0.01  # delta; the kernel's jitter; how far the weights have moved, relatively
WAYS: dict[str, Curvature] = {"signs": SignGGN(), "signs, a tenth": SignGGN(share=0.1), "4 signs": SignGGN(columns=4)}


def sign_errors(classes: int, repetitions: int) -> dict[str, Any]:
    """The relative errors of the precision, of K and of the penalty's gradient against those of the exact GGN.

    The network has learned Gaussian blobs, one per class; its weights have then moved a little from the prior's.
    """
    generator = torch.Generator().manual_seed(0)
    model = initialise(lambda: mlp(FEATURES, (100, 100), classes), seed=0)
    y = torch.arange(EXAMPLES) % classes
    x = torch.randn(classes, FEATURES, generator=generator)[y] + torch.randn(EXAMPLES, FEATURES, generator=generator)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(10):
        for chosen in torch.randperm(EXAMPLES, generator=generator).split(100):
            optimizer.zero_grad()
            F.cross_entropy(model(x[chosen]), y[chosen]).backward()
            optimizer.step()
    names, examples, memory = (
        trainable(model),
        TensorExamples(x, y),
        x[torch.randperm(EXAMPLES, generator=generator)[:POINTS]],
    )

    def precision(curvature: Curvature, seed: int) -> dict[str, Tensor]:
        found = gp.ggn_diagonal(model, names, examples, Categorical(), curvature=curvature, seed=seed)
        return {name: PRECISION + value for name, value in found.items()}

    errors = relative_errors(model, memory, precision, WAYS)
    ways: dict[str, Curvature] = {"exact": ExactGGN(), **WAYS}
    cases = {name: lambda way=way: precision(way, 0) for name, way in ways.items()}
    seconds = interleaved(cases, repetitions)  # type: ignore[arg-type]
    return {
        "classes": classes,
        "examples": EXAMPLES,
        "draws": DRAWS,
        "relative_error": errors,
        "seconds": seconds,
        "times_faster": {name: seconds["exact"] / seconds[name] for name in WAYS},
    }


def relative_errors(
    model: nn.Module,
    memory: Tensor,
    precision: Callable[[Curvature, int], dict[str, Tensor]],
    ways: dict[str, Curvature],
) -> dict[str, dict[str, float]]:
    """Of the precision, K and the penalty's gradient against those of the exact GGN: the mean over some draws."""

    def what_follows(p: dict[str, Tensor]) -> dict[str, Tensor]:
        k = gp.kernel(model, memory, Categorical(), {name: 1 / value for name, value in p.items()})
        own = torch.cat([value.flatten() for value in p.values()])
        exact = gp.inverse(k, JITTER)
        gradient = moved_gradient(model, memory, lambda d: torch.einsum("cij,cj->ci", exact, d.double()))
        return {"precision": own, "kernel": k, "gradient": gradient}

    truth = what_follows(precision(ExactGGN(), 0))
    errors = {}
    for name, curvature in ways.items():
        draws = [what_follows(precision(curvature, seed)) for seed in range(DRAWS)]
        errors[name] = {
            of: sum(float((draw[of] - truth[of]).norm() / truth[of].norm()) for draw in draws) / DRAWS for of in truth
        }
    return errors


def moved_gradient(model: nn.Module, memory: Tensor, solve: Callable[[Tensor], Tensor]) -> Tensor:
    """That of the penalty at weights that have moved, the same way each time. solve: d -> K^-1 d, both (c, i)."""
    generator = torch.Generator().manual_seed(1)
    with evaluating(model), torch.no_grad():
        before = gp.mean(model, memory, Categorical())
    moved = {
        name: (w.detach() + MOVED * w.detach().norm() / w.numel() ** 0.5 * torch.randn(w.shape, generator=generator))
        for name, w in model.named_parameters()
    }
    moved = {name: w.requires_grad_() for name, w in moved.items()}
    d = (Categorical().mean(torch.func.functional_call(model, moved, (memory,))) - before).T
    u = solve(d.detach())
    return torch.cat([g.flatten() for g in torch.autograd.grad(d, list(moved.values()), 2 * u.to(d))])
