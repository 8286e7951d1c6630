"""State as nested dicts and lists of tensors and JSON values, and the moments of an optimiser in that form."""

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fromp.foundation.errors import CheckpointError

State: TypeAlias = dict[str, Any]  # keys are text; values are dicts, lists, tensors, numbers, text, booleans or None

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
            return [walk(part, f"{path}/{place}") for place, part in enumerate(value)]
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
            if tree.keys() != {MARK} or tree[MARK] not in tensors:
                raise CheckpointError(f"the state names the tensor {tree[MARK]!r}, which is not there.")
            return tensors[tree[MARK]]
        return {key: unflatten(tensors, part) for key, part in tree.items()}
    return [unflatten(tensors, part) for part in tree] if isinstance(tree, list) else tree


def moments(optimizer: torch.optim.Optimizer) -> State:
    """What an optimiser keeps of its past steps, by the place of each parameter; `restore_moments` gives it back."""
    return {
        str(place): {name: value for name, value in of_parameter.items() if isinstance(value, Tensor)}
        for place, of_parameter in optimizer.state_dict()["state"].items()
    }


def restore_moments(optimizer: torch.optim.Optimizer, state: State) -> None:
    """Return to the moments that `moments` gave; the learning rate and the like stay."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    restored: dict[int, dict[str, Tensor]] = {}
    for place, of_parameter in state.items():
        if not place.isdecimal() or int(place) >= len(parameters):
            raise CheckpointError(f"the optimiser has {len(parameters)} parameters, the saved one had one '{place}'.")
        like = parameters[int(place)]
        restored[int(place)] = {name: _laid_out(name, value, like) for name, value in of_parameter.items()}
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
