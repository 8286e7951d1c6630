"""Which weights an output depends on, and how they are applied: found by trying."""

import torch
from torch import Tensor, nn

from fromp.derivatives.affine import LinearCall
from fromp.derivatives.model import Head, Weights, detached, evaluating, of_head, outputs, trainable
from fromp.derivatives.tape import Tape
from fromp.foundation import inputs
from fromp.foundation.inputs import Inputs


def of_other_heads(model: nn.Module, x: Inputs, head: Head) -> dict[str, Tensor]:
    """1 for each weight that moves some output at x but none of this head's, else 0.

    It is found at several weights, of which some are positive at positive inputs, so that it does not depend on
    which units happen to be silent.
    """
    if head is None:
        return {}
    now = detached(model, trainable(model))
    own, any_head = ({name: torch.zeros_like(w, dtype=torch.bool) for name, w in now.items()} for _ in range(2))
    for weights, at in (_probe(now, x, seed) for seed in range(16)):
        leaves = {name: w.detach().requires_grad_() for name, w in weights.items()}
        with evaluating(model), torch.enable_grad():
            f = outputs(model, at, None, leaves)
        for moved, some in ((own, of_head(f, head)), (any_head, f)):
            slopes = torch.autograd.grad(some.sum(), list(leaves.values()), retain_graph=True, materialize_grads=True)
            for name, slope in zip(leaves, slopes, strict=True):
                moved[name] |= slope.isfinite() & (slope != 0)
    return {name: (any_head[name] & ~own[name]).to(w) for name, w in now.items()}


def not_linear(model: nn.Module, x: Inputs, head: Head) -> tuple[str, ...]:
    """The weights that are not applied exactly once to each example, by a linear map."""
    weights = detached(model, trainable(model))
    with evaluating(model):
        tape = Tape(model, weights, inputs.take(x, slice(0, 2)), head)
    once = {name for call in tape.calls if isinstance(call, LinearCall) and call.a.ndim == 2 for name in call.names()}
    return tuple(name for name in weights if name not in once)


def _probe(weights: Weights, x: Inputs, seed: int) -> tuple[Weights, Inputs]:
    """Weights and inputs to try: positive ones first, then of both signs, none of which grow with the depth."""
    random = torch.Generator().manual_seed(seed)
    drawn = {}
    for name, w in weights.items():
        values = torch.rand(w.shape, generator=random) if seed == 0 else torch.randn(w.shape, generator=random)
        inputs_of_a_unit = w[0].numel() if w.ndim > 1 else 1
        drawn[name] = (values / inputs_of_a_unit ** (1 if seed == 0 else 0.5)).to(w)
    return drawn, inputs.transform(_positive, x) if seed == 0 else x


def _positive(part: Tensor) -> Tensor:
    return part.abs() if part.is_floating_point() else part
