"""State as nested dicts and lists of tensors and JSON values, and the moments of an optimiser in that form."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fromp.foundation.errors import CheckpointError, FrompError

State: TypeAlias = dict[str, Any]  # keys are text; values are dicts, lists, tensors, numbers, text, booleans or None

NEVER_NEGATIVE = ("step", "exp_avg_sq", "max_exp_avg_sq")  # roots of these are taken
MARK = "$tensor"  # {"$tensor": name} stands in the JSON where a tensor stood


def flatten(state: Any) -> tuple[dict[str, Tensor], Any]:
    """The tensors of a state by their path, and the rest as JSON values that say where each of them stood."""
    tensors: dict[str, Tensor] = {}

    def walk(value: Any, path: str) -> Any:
        if isinstance(value, Tensor):
            while path in tensors:  # a key may hold the separator
                path += "'"
            tensors[path] = value.detach()
            return {MARK: path}
        if isinstance(value, Mapping):
            if wrong := [key for key in value if not isinstance(key, str) or key == MARK]:
                raise CheckpointError(f"a state cannot have the key {wrong[0]!r}; use text other than {MARK!r}.")
            return {key: walk(part, f"{path}/{key}" if path else key) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return [walk(part, f"{path}/{index}") for index, part in enumerate(value)]
        return value

    tree = walk(state, "")
    try:
        json.dumps(tree)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"the state holds something that is neither a tensor nor JSON: {error}.") from error
    return tensors, tree


def unflatten(tensors: Mapping[str, Tensor], tree: Any) -> Any:
    """The state that `flatten` took apart, in the same order; tuples have become lists."""
    if isinstance(tree, dict):
        if MARK in tree:
            if tree.keys() != {MARK} or not isinstance(tree[MARK], str) or tree[MARK] not in tensors:
                raise CheckpointError(f"the state names the tensor {tree[MARK]!r}, which is not there.")
            return tensors[tree[MARK]]
        return {key: unflatten(tensors, part) for key, part in tree.items()}
    return [unflatten(tensors, part) for part in tree] if isinstance(tree, list) else tree


def moments(optimizer: torch.optim.Optimizer) -> State:
    """What an optimiser keeps of its past steps, by the place of each parameter; `restore_moments` gives it back."""
    return {
        str(index): {name: value for name, value in of_parameter.items() if isinstance(value, Tensor)}
        for index, of_parameter in optimizer.state_dict()["state"].items()
    }


def restore_moments(optimizer: torch.optim.Optimizer, state: State) -> None:
    """Return to the moments that `moments` gave; the learning rate and the like stay."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    restored: dict[int, dict[str, Tensor]] = {}
    for index, of_parameter in state.items():
        if not index.isdecimal() or int(index) >= len(parameters):
            raise CheckpointError(f"the optimiser has {len(parameters)} parameters, the saved one had one '{index}'.")
        like, of_parameter = parameters[int(index)], field(state, index, dict)
        restored[int(index)] = {name: _laid_out(name, tensor(of_parameter, name), like) for name in of_parameter}
        if wrong := [name for name in NEVER_NEGATIVE if name in of_parameter and bool((of_parameter[name] < 0).any())]:
            raise CheckpointError(f"the optimiser's saved '{wrong[0]}' is negative; restore it from a copy.")
    kinds = [{name: value.ndim == 0 for name, value in of.items()} for of in restored.values()]
    if any(kind != kinds[0] for kind in kinds):
        raise CheckpointError("the optimiser's moments differ from weight to weight; restore them from a copy.")
    optimizer.load_state_dict({**optimizer.state_dict(), "state": restored})


def _laid_out(name: str, value: Tensor, like: Tensor) -> Tensor:
    """A moment laid out in memory as its weight is: fused optimisers go by that, and read beyond a wrong shape."""
    if value.ndim == 0:
        return value
    if value.shape != like.shape:
        raise CheckpointError(
            f"the optimiser's '{name}' has the shape {tuple(value.shape)}, its weight has {tuple(like.shape)}; "
            "go on with the optimiser and the model that were saved."
        )
    return torch.empty_like(like, dtype=value.dtype).copy_(value)


def check_finite(state: State, when: str) -> None:
    """An error that names the first tensor of a state which holds NaN or infinity; waits for the device once."""
    tensors, _ = flatten(state)
    numbers = {name: value for name, value in tensors.items() if value.is_floating_point()}
    fine = [torch.isfinite(value).all().cpu() for value in numbers.values()]
    for name, finite in zip(numbers, fine, strict=True):
        if not finite:
            raise FrompError(
                f"{when}: '{name}' came to NaN or infinity, and nothing has been changed. Look for weights or inputs "
                "that are very large; a larger `jitter` or `prior_precision`, or float64, may help."
            )


def field(state: Any, key: str, *kinds: type) -> Any:
    """state[key], with an error unless it is there and of one of these types."""
    if not isinstance(state, dict) or key not in state:
        raise CheckpointError(f"the saved state has no '{key}'; restore it from a copy.")
    value = list(state[key]) if isinstance(state[key], tuple) else state[key]  # JSON has lists
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise CheckpointError(f"the saved '{key}' is {type(value).__name__}, not {names}; restore it from a copy.")
    return value


def tensor(state: Any, key: str, *shape: int, floating: bool | None = None) -> Tensor:
    """The tensor state[key], with an error unless it has this shape (-1 is any size), kind and finite values."""
    value = field(state, key, Tensor)
    if shape and (
        len(shape) != value.ndim or any(n not in (-1, size) for n, size in zip(shape, value.shape, strict=True))
    ):
        wanted = tuple("any" if n < 0 else n for n in shape)
        raise CheckpointError(
            f"the saved '{key}' has the shape {tuple(value.shape)}, not {wanted}; use the same model."
        )
    if floating is not None and value.is_floating_point() != floating:
        kind = "floating point" if floating else "whole numbers"
        raise CheckpointError(f"the saved '{key}' is {value.dtype}, not {kind}; restore it from a copy.")
    if value.is_floating_point() and not bool(torch.isfinite(value).all()):
        raise CheckpointError(f"the saved '{key}' holds NaN or infinity; restore it from a copy.")
    return value


def weights(state: Any, key: str, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors state[key] by weight, on the weights' devices, with an error unless each has its weight's shape."""
    found = field(state, key, dict)
    for name in found:
        if name not in like:
            raise CheckpointError(f"the model has no parameter '{name}', the saved one had; use the same model.")
    kinds = {name: like[name].is_floating_point() for name in found}
    return {name: tensor(found, name, *like[name].shape, floating=kinds[name]).to(like[name]) for name in found}


def whole(state: Any, key: str, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same, with an error unless every weight is there; in the order of `like`."""
    found = weights(state, key, like)
    if missing := [name for name in like if name not in found]:
        raise CheckpointError(f"the saved '{key}' lacks the parameter '{missing[0]}'; restore it from a copy.")
    return {name: found[name] for name in like}


def renamed(state: Any, keys: Sequence[str], prefix: str, known: Collection[str]) -> Any:
    """The state with the names in the dicts state[key] as the model has them: with a prefix, or without it."""

    def own(name: str) -> str:
        bare = name.removeprefix(prefix)
        return next((found for found in (name, prefix + name, bare) if found in known), name)

    if not isinstance(state, dict):
        return state
    found = {key: state[key] for key in keys if isinstance(state.get(key), dict)}
    return {**state, **{key: {own(name): value for name, value in of.items()} for key, of in found.items()}}


def set_generator(generator: torch.Generator, state: Any, key: str) -> None:
    """Return a random generator to a saved state."""
    try:
        generator.set_state(field(state, key, Tensor).cpu())
    except (RuntimeError, TypeError) as error:
        raise CheckpointError(f"the saved '{key}' is no random state ({error}); restore it from a copy.") from error
