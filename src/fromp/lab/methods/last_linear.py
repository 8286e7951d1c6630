"""The layer that ends a model, for methods that treat its weights otherwise than the rest."""

import torch
from torch import Tensor, nn

from fromp.derivatives.model import device_of, evaluating, outputs
from fromp.foundation import inputs
from fromp.foundation.errors import FrompError
from fromp.foundation.inputs import Inputs


def last_linear(model: nn.Module, x: Inputs) -> tuple[nn.Linear, int]:
    """The layer that gives the model's outputs, and how many they are; an error unless it is an nn.Linear."""
    calls: list[tuple[nn.Linear, Tensor]] = []
    hooks = [
        module.register_forward_hook(lambda module, given, out: calls.append((module, out)))
        for module in model.modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        with evaluating(model), torch.no_grad():
            f = outputs(model, inputs.move(x, device_of(model)))
    finally:
        for hook in hooks:
            hook.remove()
    if not calls or calls[-1][1].shape != f.shape or not bool(f.isclose(calls[-1][1], 0, 0, equal_nan=True).all()):
        last = calls[-1][0] if calls else "none is executed"
        raise FrompError(
            f"the model's outputs are not those of its last nn.Linear ({last}), where FRCL finds its features and "
            "VCL the weights of each head; let the model end with a linear layer, without anything behind it."
        )
    return calls[-1][0], f.shape[1]
