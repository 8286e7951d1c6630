"""States with one thing in them changed, as a fault or an attacker would, for files whose hashes then fit."""

import copy
import math
from typing import Any

import numpy as np
import torch

from fromp.foundation.errors import CheckpointError
from fromp.foundation.state import State, flatten, unflatten


def damaged(state: State, number: int) -> tuple[State | None, str]:
    """A state with one thing in it changed, and what that was."""
    generator = np.random.default_rng(number)
    tensors, tree = flatten(state)
    tensors, tree = dict(tensors), copy.deepcopy(tree)
    if number % 2:
        name = list(tensors)[generator.integers(len(tensors))]
        old = tensors[name]
        change = generator.integers(6)
        if change == 0:
            new = torch.cat([old.flatten(), old.flatten()])
        elif change == 1:
            new = old.double() if old.dtype != torch.float64 else old.long()
        elif change == 2 and old.is_floating_point():
            new = old.clone()
            new.view(-1)[0] = math.nan
        elif change == 3:
            new = -old if old.dtype not in (torch.uint8, torch.bool) else old[:5]
        elif change == 4:
            new = torch.zeros(0)
        else:
            new = old.flatten()[:-1] if old.ndim else old
        tensors[name] = new
        return unflatten(tensors, tree), f"{name} {change}"
    places: list[tuple[Any, Any, str]] = []

    def walk(value: Any, path: str) -> None:
        if isinstance(value, dict | list):
            for key in value if isinstance(value, dict) else range(len(value)):
                places.append((value, key, f"{path}/{key}"))
                walk(value[key], f"{path}/{key}")

    walk(tree, "")
    place, key, path = places[generator.integers(len(places))]
    wrong: list[Any] = [None, -1, "text", [], {}, 1e308, math.nan, True, [1, 2, 3]]
    change = generator.integers(len(wrong) + 1)
    if change == len(wrong) and isinstance(place, dict):
        del place[key]
    else:
        place[key] = wrong[change % len(wrong)]
    try:
        return unflatten(tensors, tree), f"{path} {change}"
    except CheckpointError:
        return None, path
