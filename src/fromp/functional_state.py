"""A saved state of `Functional`, checked against the model and in its place before anything is changed."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fromp.contexts.past import Past
from fromp.derivatives.model import device_of, named_weights
from fromp.derivatives.watch import Fingerprint, as_fingerprint
from fromp.foundation.errors import CheckpointError
from fromp.foundation.state import State, field, set_generator, tensor, weights
from fromp.holding import Fixed, Hold
from fromp.keeping import Keep
from fromp.likelihoods import Likelihood
from fromp.memory import Memory
from fromp.metrics.tied import Tied
from fromp.old_network import restored as old_network
from fromp.prior import wide_weight


class Restored(NamedTuple):
    """What a state holds, where and as the model takes it."""

    teacher: nn.Module | None
    past: Past | None
    fixed: list[Fixed]
    precision: dict[str, Tensor]
    generator: torch.Generator
    made_by: State | None
    fingerprint: Fingerprint | None


def completed(state: Any) -> Any:
    """A state with the entries that have been added since the first one."""
    if not isinstance(state, dict):
        return state
    teacher = state.get("teacher") or {}
    shapes = {name: list(value.shape) for name, value in teacher.items() if isinstance(value, Tensor)}
    return {"settings": {}, "keep": None, "weights": shapes, **state}


def restored(
    state: State,
    model: nn.Module,
    as_network: Callable[[nn.Module], nn.Module],
    likelihood: Likelihood,
    holds: Sequence[Hold],
    keep: Keep,
    place: tuple[torch.device, torch.dtype],
) -> Restored:
    """Everything in a state, or an error that says what is wrong with it, or with the model."""
    device, now = place
    then = getattr(torch, field(state, "dtype", str), None)
    memories = [Memory.from_state(m, device).to(device, then, now) for m in field(state, "memories", list)]
    fixed = _fixed_in(state, memories, holds, device_of(model))
    made_by = field(state, "keep", dict, type(None))
    if made_by is not None:
        keep.check(made_by)
    if (field(state, "teacher", dict, type(None)) is None) != (not memories):
        raise CheckpointError(f"{len(memories)} memories were saved beside the wrong network; restore a copy.")
    teacher = past = None
    if memories:
        teacher = old_network(model, state, "teacher")
        try:
            past = Past(memories, as_network(teacher))
            for memory, (old, _) in zip(memories, past.outputs(), strict=True):
                likelihood.check_labels(memory.labels, old.shape[1])
        except (RuntimeError, TypeError, LookupError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"the saved memory does not fit the model ({error}); load into the same model."
            ) from error
    known = {name: wide_weight(weight) for name, weight in named_weights(teacher or model).items()}
    precision = weights(state, "precision", known)
    if wrong := [name for name, value in precision.items() if bool((value < 0).any())]:
        raise CheckpointError(f"the saved precision of '{wrong[0]}' is negative; restore it from a copy.")
    generator = torch.Generator()
    set_generator(generator, state, "generator")
    saved = as_fingerprint(field(state, "fingerprint", dict)) if past else None
    return Restored(teacher, past, fixed, precision, generator, made_by, saved)


def _fixed_in(state: State, memories: Sequence[Memory], holds: Sequence[Hold], device: torch.device) -> list[Fixed]:
    """What a state has fixed for the metrics of `holds`, in each task."""
    tied = [isinstance(hold.metric, Tied) for hold in holds]
    untied = [[None] * len(tied) for _ in memories]  # before there were such metrics
    saved = field(state, "fixed", list) if "fixed" in state else untied
    if any(not isinstance(own, list | tuple) for own in saved):
        raise CheckpointError("the saved 'fixed' has not one list per task; restore it from a copy.")
    if len(saved) != len(memories) or any([one is not None for one in own] != tied for own in saved):
        raise CheckpointError("the state was saved with other metrics; give the same `holds`.")
    found = []
    for own, memory in zip(saved, memories, strict=True):
        i = len(memory)
        kept = (None if one is None else tensor({"fixed": one}, "fixed", -1, i, i, floating=True) for one in own)
        found.append([None if one is None else one.to(device) for one in kept])
    return found
