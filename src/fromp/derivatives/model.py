"""The user's model as a function of its weights, left as it was found."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fromp.foundation.errors import DataError, DerivativeError
from fromp.foundation.inputs import Inputs, tensors

Weights: TypeAlias = Mapping[str, Tensor]
Head: TypeAlias = tuple[int, ...] | None  # output indices; None is every output


def outputs(model: nn.Module, x: Inputs, head: Head = None, weights: Weights | None = None) -> Tensor:
    """f(x) at the model's own weights, or at `weights`, restricted to a head: (b, c)."""
    kwargs = dict(x) if isinstance(x, Mapping) else {}
    args = (x,) if isinstance(x, Tensor) else () if isinstance(x, Mapping) else tuple(x)
    if weights is None:
        f = model(*args, **kwargs)
    else:
        f = functional_call(model, _everywhere(model, weights), args, kwargs, tie_weights=False)
    if not isinstance(f, Tensor) or f.ndim != 2:
        shape = tuple(f.shape) if isinstance(f, Tensor) else type(f).__name__
        raise DataError(f"the model gave {shape}; fromp needs outputs of shape (batch, outputs).")
    return of_head(f, head)


def checked_outputs(model: nn.Module, x: Inputs, head: Head = None, weights: Weights | None = None) -> Tensor:
    """The same, with an error if the model writes on its inputs, which would change what is kept of them."""
    before = _versions(x)
    f = outputs(model, x, head, weights)
    if _versions(x) != before:
        raise DataError("the model writes on its inputs; let it work on a copy, as in `x = x - mean`.")
    return f


def of_head(f: Tensor, head: Head) -> Tensor:
    """The outputs of a head: (b, c)."""
    if head is None:
        return f
    check_head(head, f.shape[1])
    return f[:, torch.tensor(head, device=f.device)]


def as_head(head: Sequence[int] | None) -> Head:
    """The output indices of a head, however they are given."""
    if head is not None and not isinstance(head, Iterable):
        raise DataError(f"head={head} is not a list of output indices; write head=[2, 3].")
    return None if head is None else tuple(int(index) for index in head)


def check_head(head: tuple[int, ...], num_outputs: int) -> None:
    """An error unless every index of the head is one of the model's outputs."""
    if len(head) == 0:
        raise DataError("head=[] has no outputs; name at least one, or leave it out for all of them.")
    if len(set(head)) < len(head):
        raise DataError(f"head={list(head)} names an output twice; give each output once.")
    for index in head:
        if not 0 <= index < num_outputs:
            raise DataError(
                f"head index {index} is outside the model's {num_outputs} outputs; use 0 to {num_outputs - 1}."
            )


def trainable(model: nn.Module) -> tuple[str, ...]:
    """Names of the parameters that training changes; an error if there are none, or the model hides them."""
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise DerivativeError(f"{type(model).__name__} wraps the model; give the model itself: model.module.")
    if isinstance(model, torch.jit.ScriptModule):
        raise DerivativeError("a scripted model cannot be looked into; give the model it was made from.")
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise DerivativeError(f"'{name}' has no shape yet; run the model once on a batch first.")
        if parameter.is_meta:
            raise DerivativeError(f"'{name}' is on the meta device and has no values; load the weights first.")
    names = tuple(name for name, parameter in model.named_parameters() if parameter.requires_grad)
    if not names:
        count = sum(1 for _ in model.parameters())
        raise DerivativeError(
            f"none of the model's {count} parameters is trainable; set requires_grad on those that training changes."
        )
    return names


def detached(model: nn.Module, names: tuple[str, ...]) -> dict[str, Tensor]:
    """The named weights as fresh leaves, so that differentiating never touches the user's gradients."""
    parameters = dict(model.named_parameters())
    return {name: parameters[name].detach().requires_grad_() for name in names}


def device_of(model: nn.Module) -> torch.device:
    """Where the model's first parameter lives."""
    return next(model.parameters()).device


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Dropout off, batch statistics frozen and autocast off inside; every module's own mode back afterwards."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        with torch.autocast(device_of(model).type, enabled=False):
            yield
    finally:
        for module in training:
            module.training = True


def _everywhere(model: nn.Module, weights: Weights) -> dict[str, Tensor]:
    """The weights under every name of each, but only one name for each place.

    `functional_call` would find the other names itself, but where one module stands in two places it would swap
    its weights twice and leave the second ones behind in the user's model.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    swapped = dict(weights)
    for path, module in model.named_modules():
        for attribute, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            name = names[id(parameter)]
            if name in weights:
                swapped[f"{path}.{attribute}" if path else attribute] = weights[name]
    return swapped


def _versions(x: Inputs) -> list[int]:
    return [part._version for part in tensors(x) if not part.is_inference()]
