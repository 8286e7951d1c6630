"""Layers that grow: a parameter with more rows than it had, of which the first are those that it had."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fromp.derivatives.model import evaluating, outputs
from fromp.foundation import inputs
from fromp.prior import Anchor


def has_grown(now: list[int], then: Any) -> bool:
    """Whether a shape is another one with more rows."""
    sizes = isinstance(then, list) and all(isinstance(n, int) for n in then)
    return sizes and len(now) == len(then) > 0 and now[0] > then[0] > 0 and now[1:] == then[1:]


def grown(known: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> dict[str, int]:
    """The weights that have more rows than is known of them, and how many are known."""
    both = {name: value for name, value in known.items() if name in weights}
    return {name: len(value) for name, value in both.items() if has_grown([*weights[name].shape], [*value.shape])}


def extended(known: Tensor, like: Tensor, value: float) -> Tensor:
    """The known rows, and `value` in those that have come since."""
    if known.shape == like.shape:
        return known
    return torch.cat([known, known.new_full((len(like) - len(known), *like.shape[1:]), value)])


def on_its_outputs(anchor: Anchor, model: nn.Module) -> Anchor:
    """The anchor of a task that had all outputs, with those as its head if the model gives more by now.

    Its means stay those of a softmax, or the like, over the outputs that there were.
    """
    memory = anchor.memory
    if memory.head is not None:
        return anchor
    with evaluating(model), torch.no_grad():
        found = outputs(model, inputs.take(memory.inputs, slice(0, 2))).shape[1]
    if found <= len(anchor.mean):
        return anchor
    return replace(anchor, memory=replace(memory, head=tuple(range(len(anchor.mean)))))
