"""The user's model as a function of its weights, left as it was found."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fromp.foundation.arrays import describe
from fromp.foundation.errors import DataError, DerivativeError
from fromp.foundation.inputs import Inputs, concatenate, num_examples, signature, tensors

Weights: TypeAlias = Mapping[str, Tensor]
Head: TypeAlias = tuple[int, ...] | None  # output indices; None is every output
Output: TypeAlias = Callable[[Any], Any]  # what a model returned -> f: (b, c), or anything that `outputs` takes

WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")  # torch's names for a wrapped module


@final
class Picked(nn.Module):
    """A model of which `output` picks f out of what it returns."""

    def __init__(self, model: nn.Module, output: Output) -> None:
        super().__init__()
        self._orig_mod, self._output = bare(model), output

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._output(self._orig_mod(*args, **kwargs))


def bare(model: nn.Module) -> nn.Module:
    """The model inside `torch.compile`, `DataParallel` and `DistributedDataParallel`, whose weights are the same."""
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif "_orig_mod" in model._modules and not isinstance(model, Picked):
            model = model.get_submodule("_orig_mod")
        else:
            return model


def forward_of(model: nn.Module) -> Callable[..., Any]:
    """The forward of the user's own module."""
    model = bare(model)
    return model.get_submodule("_orig_mod").forward if isinstance(model, Picked) else model.forward


def named_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters by name, without what torch's wrappers add to the names."""
    return {plain(name): weight for name, weight in bare(model).named_parameters()}


def named_buffers(model: nn.Module) -> dict[str, Tensor]:
    """The buffers by name, likewise."""
    return {plain(name): buffer for name, buffer in bare(model).named_buffers()}


def named_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules by name, likewise: of a wrapper and what it wraps, the latter."""
    return {plain(name): module for name, module in bare(model).named_modules()}


def plain(name: str) -> str:
    """A name without what torch's wrappers add to it."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def outputs(model: nn.Module, x: Inputs, head: Head = None, weights: Weights | None = None) -> Tensor:
    """f(x) at the model's own weights, or at `weights`, restricted to a head: (b, c).

    The model may return f, or a tuple that begins with it, or a dict or an object that has it as `logits`.
    """
    model = bare(model)
    kwargs = dict(x) if isinstance(x, Mapping) else {}
    args = () if isinstance(x, Mapping) else tuple(x) if isinstance(x, list | tuple) else (x,)
    if weights is None:
        returned = model(*args, **kwargs)
    else:
        returned = functional_call(model, _everywhere(model, weights), args, kwargs, tie_weights=False)
    return of_head(_picked(returned, x), head)


def outputs_of_parts(model: nn.Module, parts: Sequence[Inputs]) -> list[Tensor]:
    """f at each of several batches, in one pass where they go together."""
    if len(parts) < 2 or len(set(map(signature, parts))) > 1:
        return [outputs(model, x) for x in parts]
    return list(outputs(model, concatenate(parts)).split([*map(num_examples, parts)]))


def checked_outputs(model: nn.Module, x: Inputs, head: Head = None, weights: Weights | None = None) -> Tensor:
    """The same, with an error if the model writes on its inputs, which would change what is kept of them."""
    before = _versions(x)
    f = outputs(model, x, head, weights)
    if _versions(x) != before:
        raise DataError("the model writes on its inputs; let it work on a copy, as in `x = x - mean`.")
    return f


def _picked(returned: Any, x: Inputs) -> Tensor:
    """f out of what a model returns. Sequence outputs (b, T, c) become (b, T c), zero where the `attention_mask` is."""
    if isinstance(returned, Mapping):
        f = returned.get("logits")
    elif hasattr(returned, "logits"):
        f = returned.logits
    else:
        f = returned[0] if isinstance(returned, tuple | list) and returned else returned
    if isinstance(f, Tensor) and f.ndim == 2:
        return f
    if isinstance(f, Tensor) and f.ndim == 3 and len(f) == num_examples(x):
        mask = x.get("attention_mask") if isinstance(x, Mapping) else None
        if isinstance(mask, Tensor) and mask.shape == f.shape[:2]:
            f = f.where(mask[..., None] != 0, 0)
        return f.flatten(1)
    inside = "" if f is returned else f", with {describe(f)} where the outputs are looked for"
    way = "FROMP(model, ..., output=lambda returned: ...) says where they are, or gives them that shape"
    raise DataError(
        f"the model gave {describe(returned)}{inside}; fromp needs outputs of shape (batch, outputs): {way}."
    )


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
    try:
        return None if head is None else tuple(int(index) for index in head)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"head={head} is not a list of output indices ({error}); write head=[2, 3].") from error


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
    if isinstance(bare(model), torch.jit.ScriptModule):
        raise DerivativeError("a scripted model cannot be looked into; give the model it was made from.")
    found = named_weights(model)
    for name, parameter in found.items():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise DerivativeError(f"'{name}' has no shape yet; run the model once on a batch first.")
        if parameter.is_meta:
            raise DerivativeError(f"'{name}' is on the meta device and has no values; load the weights first.")
        if parameter.is_inference():
            raise DerivativeError(
                f"'{name}' was made under torch.inference_mode, and such a tensor never has derivatives; build the "
                "model outside of it (torch.no_grad does no harm)."
            )
    names = tuple(name for name, parameter in found.items() if parameter.requires_grad)
    if not names:
        raise DerivativeError(
            f"none of the model's {len(found)} parameters is trainable; "
            "set requires_grad on those that training changes."
        )
    return names


def detached(model: nn.Module, names: tuple[str, ...]) -> dict[str, Tensor]:
    """The named weights as fresh leaves, so that differentiating never touches the user's gradients."""
    found = named_weights(model)
    return {name: found[name].detach().requires_grad_() for name in names}


def device_of(model: nn.Module) -> torch.device:
    """Where the model's first parameter lives; the CPU if there is none."""
    return next(model.parameters(), torch.empty(0)).device


def dtype_of(model: nn.Module) -> torch.dtype:
    """The type of the model's first floating-point parameter, which its inputs should have."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.get_default_dtype())


def trains_as_it_predicts(model: nn.Module, x: Inputs) -> bool:
    """Whether a training pass gives the outputs of evaluation and changes no buffer, so that one pass can serve both.

    With dropout the outputs differ, and batch norm writes on buffers.
    """
    if next(model.buffers(), None) is not None:
        return False
    with torch.random.fork_rng([]), torch.no_grad():
        state = torch.get_rng_state()
        learning = outputs(model, x)
        if not torch.equal(state, torch.get_rng_state()):
            return False
        with evaluating(model):
            return torch.equal(learning, outputs(model, x))


def check_dtype(model: nn.Module, x: Inputs, cause: Exception) -> None:
    """An error if the inputs are of another floating-point type than the model, which is why it cannot take them."""
    for part in tensors(x):
        if part.is_floating_point() and part.dtype != dtype_of(model):
            raise DataError(
                f"the inputs are {part.dtype}, the model's weights {dtype_of(model)}, and the model cannot take that "
                f"({cause}); convert one of them, as in x.to({dtype_of(model)})."
            ) from cause


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Dropout off, batch statistics frozen and autocast off inside; every module's own mode back afterwards."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        _set_training(module, False)
    device = device_of(model).type
    try:
        with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
            yield
    finally:
        for module in training:
            _set_training(module, True)


def _set_training(module: nn.Module, value: bool) -> None:
    """The module's mode alone. A plain module would look for parameters of that name first, in each step."""
    plainly = type(module).__setattr__ is nn.Module.__setattr__  # and not a scripted one, which keeps it elsewhere
    (object.__setattr__ if plainly else setattr)(module, "training", value)


def _everywhere(model: nn.Module, weights: Weights) -> dict[str, Tensor]:
    """The weights under every name of each, but only one name for each place.

    `functional_call` would find the other names itself, but where one module stands in two places it would swap
    its weights twice and leave the second ones behind in the user's model.
    """
    names = {id(parameter): name for name, parameter in named_weights(model).items()}
    swapped = {}
    for path, module in model.named_modules():
        for attribute, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            name = names[id(parameter)]
            if name in weights:
                swapped[f"{path}.{attribute}" if path else attribute] = weights[name]
    return swapped


def _versions(x: Inputs) -> list[int]:
    return [part._version for part in tensors(x) if not part.is_inference()]
