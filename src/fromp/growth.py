"""Layers that grow: a parameter with more rows than it had, of which the first are those that it had."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fromp.derivatives.model import evaluating, outputs
from fromp.foundation import inputs
from fromp.memory import Memory


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


def on_its_outputs(memory: Memory, width: int, model: nn.Module) -> Memory:
    """The memory of a task that had all outputs, with those as its head if the model gives more than `width` by now.

    Its means stay those of a softmax, or the like, over the outputs that there were.
    """
    if memory.head is not None:
        return memory
    with evaluating(model), torch.no_grad():
        found = outputs(model, inputs.take(memory.inputs, slice(0, 2))).shape[1]
    return memory if found <= width else replace(memory, head=tuple(range(width)))
