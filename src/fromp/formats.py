"""Memory folders of every format so far: what older versions of `FROMP.save` wrote, as today's version has it."""

import os
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from fromp.curvature import ExactGGN
from fromp.foundation import storage
from fromp.foundation.errors import CheckpointError
from fromp.foundation.inputs import Inputs
from fromp.foundation.state import State
from fromp.refresh import at_every_end

KIND = "fromp"


def read(folder: str | os.PathLike) -> State:
    """The state in a folder that any version has saved."""
    return completed(storage.read(folder, KIND, {1: _from_first_format}))


def upgrade(folder: str | os.PathLike) -> bool:
    """Write a memory folder of an older version as this one would; whether there was anything to do.

    What the folder held stays until the new files are complete.
    """
    kind, written = storage.kind_and_format(folder)
    if written == storage.FORMAT and kind != KIND:
        return False  # what else there is has had one format only
    found = storage.read(folder, KIND, {1: _from_first_format})
    state = completed(found)
    if written == storage.FORMAT and found.keys() == state.keys():
        return False
    storage.write(folder, KIND, state)
    return True


def completed(state: Any) -> Any:
    """A state with the entries that have been added since the first one of its format."""
    if not isinstance(state, dict):
        return state
    exactly = {"name": ExactGGN.__name__, "settings": {}}
    return {"curvature": exactly, "refresh": at_every_end.__name__, "keep": None, "fixed": {}, **state}


def _from_first_format(tensors: dict[str, Tensor], tree: Any) -> State:
    """Version 0.1 had one flat dict of tensors, and knew neither fingerprints nor the examples' places in the data."""
    try:
        kinds = {kind for _, kind in tree["weights"].values()}
        return {
            "settings": {"total_memory": None, "output": None, **tree["settings"]},
            "likelihood": tree["likelihood"],
            "weights": {name: shape for name, (shape, _) in tree["weights"].items()},
            "fingerprint": {},
            "dtype": "float32" if not kinds else kinds.pop(),
            "precision": _below(tensors, "precision."),
            "tasks": [_task(tensors, number, entry) for number, entry in enumerate(tree["memories"])],
            "generator": tensors["generator"],
            "turns": tensors["turns"],
        }
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration) as error:
        raise CheckpointError(
            f"the state of format 1 is incomplete ({type(error).__name__}: {error}); restore the folder from a copy."
        ) from error


def _task(tensors: dict[str, Tensor], number: int, entry: dict[str, Any]) -> State:
    memory, prior = _below(tensors, f"memory.{number}."), f"prior.{number}."
    count = sum(name.startswith("input.") for name in memory)
    parts = iter([memory[f"input.{k}"] for k in range(count)])
    return {
        "memory": {
            "inputs": _assembled(entry["inputs"], parts),
            "labels": memory["labels"],
            "scores": memory["scores"],
            "head": entry["head"],
            "indices": memory["labels"].new_full((len(memory["labels"]),), -1).long(),  # not known
        },
        "mean": tensors[f"{prior}mean"],
        "kernel": _below(tensors, f"{prior}kernel."),
    }


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _assembled(structure: Any, parts: Iterator[Tensor]) -> Inputs:
    """Inputs of that structure, in which None stands for a tensor."""
    if structure is None:
        return next(parts)
    if isinstance(structure, dict):
        return {key: _assembled(structure[key], parts) for key in sorted(structure)}
    return [_assembled(part, parts) for part in structure]
