"""Whether a model is the one that a past was remembered with."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn

from fromp import growth
from fromp.derivatives.model import check_head, evaluating, named_weights, outputs
from fromp.foundation import inputs
from fromp.foundation.errors import CheckpointError
from fromp.likelihoods import Likelihood
from fromp.memory import Memory


def check_memory(model: nn.Module, likelihood: Likelihood, memory: Memory, width: int, grown: bool = False) -> None:
    """An error unless the model can take the memory's inputs, and gives the outputs that were remembered.

    width: how many those were. grown: whether it may give more of them, because its layers have more rows.
    """
    try:
        with evaluating(model), torch.no_grad():
            found = outputs(model, inputs.take(memory.inputs, slice(0, 2))).shape[1]
    except (RuntimeError, TypeError, LookupError, ValueError, AttributeError) as error:
        raise CheckpointError(f"the model cannot take the saved inputs ({error}); load into the same model.") from error
    if memory.head is not None:
        check_head(memory.head, found)
    expected = found if memory.head is None else len(memory.head)
    if memory.head is None and grown:
        expected = min(found, width)
    if width != expected:
        raise CheckpointError(
            f"a task was saved with {width} outputs, the model gives {expected} for it; load into the same model."
        )
    likelihood.check_labels(memory.labels, expected)


def check_shapes(model: nn.Module, past: Mapping[str, Any]) -> None:
    """An error unless the weights are those that the past was remembered with."""
    present = {name: list(weight.shape) for name, weight in named_weights(model).items()}
    for name, shape in past.items():
        if name not in present:
            raise CheckpointError(
                f"the model has no parameter '{name}', the remembered one had; use the same model"
                f"{_other_prefix(name, present)}."
            )
        if present[name] != shape and not growth.has_grown(present[name], shape):
            raise CheckpointError(
                f"the parameter '{name}' is {present[name]}, in the remembered model it was {shape}; use the same "
                "model. A layer may gain rows, of which the first are those it had, and nothing else."
            )


def _other_prefix(name: str, present: Collection[str]) -> str:
    """Which prefix to give, if the name is the model's but for one."""
    for own in present:
        for longer, shorter in ((own, name), (name, own)):
            if longer.endswith(f".{shorter}"):
                return f", or, as the model has '{own}', load(..., prefix='{longer.removesuffix(shorter)}')"
    return ""
