"""A sum whose parts are differentiated one after the other, so that only one part's activations exist at a time."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fromp.derivatives.sharded import is_split

Parts: TypeAlias = Sequence[Callable[[], Tensor]]


def total(parts: Parts, weights: Sequence[Tensor]) -> Tensor:
    """sum_k part_k(), each a scalar of the weights, with its gradient, in the memory of the largest part alone."""
    weights = [weight for weight in weights if weight.requires_grad]
    # A compiled graph plans its own memory, and does not look into the function below. The gradients of split weights
    # are in no graph: FSDP2 adds them to the weights on the way back.
    alone = len(parts) == 1 or not weights or any(map(is_split, weights))
    if alone or not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return _plain(parts)
    return _OneByOne.apply(parts, *weights)


def _plain(parts: Parts) -> Tensor:
    values = [part() for part in parts]
    return values[0] if len(values) == 1 else torch.stack(values).sum()


class _OneByOne(torch.autograd.Function):
    """The gradient is taken on the way forward, while a part's graph exists; on the way back it is only scaled."""

    @staticmethod
    def forward(ctx: Any, parts: Parts, *weights: Tensor) -> Tensor:
        values: list[Tensor] = []
        gradients: list[Tensor | None] = [None] * len(weights)
        for part in parts:
            with torch.enable_grad():
                value = part()
            values.append(value.detach())
            for place, g in enumerate(torch.autograd.grad(value, weights, allow_unused=True)):
                before = gradients[place]
                gradients[place] = before if g is None else g if before is None else before + g
        ctx.parts, ctx.gradients = parts, gradients
        ctx.save_for_backward(*weights)
        return torch.stack(values).sum()

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        gradients = ctx.gradients
        if torch.is_grad_enabled():  # someone asks for second derivatives, which need the whole graph
            gradients = torch.autograd.grad(_plain(ctx.parts), ctx.saved_tensors, create_graph=True, allow_unused=True)
        return None, *(None if g is None else scale * g for g in gradients)
