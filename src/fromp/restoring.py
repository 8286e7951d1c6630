"""A saved state of `FROMP`, checked against the model and in its place before anything is changed."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fromp import growth
from fromp.compatible import check_memory, check_shapes
from fromp.derivatives.model import Output, named_weights
from fromp.derivatives.watch import Fingerprint, as_fingerprint
from fromp.foundation.errors import CheckpointError, DataError
from fromp.foundation.state import State, field, set_generator, tensor, weights
from fromp.keeping import Keep
from fromp.likelihoods import Likelihood
from fromp.memory import Score, Select
from fromp.metrics.kernel import Kernel
from fromp.naming import KERNELS, SCORES, SELECTIONS, named
from fromp.prior import Anchor, wide_weight

SETTINGS = (
    "tau", "memory_size", "prior_precision", "jitter", "tasks_per_step", "memory_budget", "total_memory", "sketch"
)  # fmt: skip


class Restored(NamedTuple):
    """What a state holds, where and as the model takes it."""

    anchors: list[Anchor]
    precision: dict[str, Tensor]
    turns: Tensor
    generator: torch.Generator
    made_by: State | None
    fingerprint: Fingerprint
    fixed: Fingerprint


def restored(
    state: State,
    model: nn.Module,
    likelihood: Likelihood,
    kernel: type[Kernel],
    keep: Keep,
    place: tuple[torch.device, torch.dtype],
) -> Restored:
    """Everything in a state, or an error that says what is wrong with it, or with the model."""
    present = named_weights(model)
    shapes = field(state, "weights", dict)
    check_shapes(model, shapes)
    rows = {name: shape[0] for name, shape in shapes.items() if shape}  # fewer where a layer has grown
    known = {name: wide_weight(w)[: rows[name]] if name in rows else wide_weight(w) for name, w in present.items()}
    precision = weights(state, "precision", known)
    if wrong := [name for name, value in precision.items() if not bool((value > 0).all())]:
        raise CheckpointError(f"the saved precision of '{wrong[0]}' is not positive; restore it from a copy.")
    made_by = field(state, "keep", dict, type(None))
    if made_by is not None:
        keep.check(made_by)
    anchors = _anchors(state, model, likelihood, kernel, place, bool(growth.grown(precision, present)))
    turns = tensor(state, "turns", -1, floating=False).cpu()
    if len(turns) != len(turns.unique()) or bool(((turns < 0) | (turns >= len(anchors))).any()):
        raise CheckpointError(f"the saved 'turns' do not name {len(anchors)} tasks; restore it from a copy.")
    generator = torch.Generator()
    set_generator(generator, state, "generator")
    saved, fixed = (as_fingerprint(field(state, key, dict)) for key in ("fingerprint", "fixed"))
    return Restored(anchors, precision, turns, generator, made_by, saved, fixed)


def saved_options(
    state: State, kernel: type[Kernel] | None, score: Score | None, select: Select | None, output: Output | None
) -> dict[str, Any]:
    """The settings of a state, with what the user gives instead of what was saved by name."""
    settings = field(state, "settings", dict)
    kinds: dict[str, tuple[Mapping[str, Any], Any]] = {
        "kernel": (KERNELS, kernel), "score": (SCORES, score), "select": (SELECTIONS, select)
    }  # fmt: skip
    if output is None and (name := settings.get("output")) is not None:
        named({}, str(name), "output")
    chosen = {
        role: own if own is not None else named(known, field(settings, role, str), role)
        for role, (known, own) in kinds.items()
    }
    return {name: settings.get(name) for name in SETTINGS} | chosen


def _anchors(
    state: State,
    model: nn.Module,
    likelihood: Likelihood,
    kernel: type[Kernel],
    place: tuple[torch.device, torch.dtype],
    grown: bool,
) -> list[Anchor]:
    device, now = place
    try:
        then = getattr(torch, field(state, "dtype", str), None)
        if not isinstance(then, torch.dtype):
            raise CheckpointError(f"the saved 'dtype' {state['dtype']!r} is not one of torch; restore it from a copy.")
        found = [Anchor.from_state(task, kernel, device) for task in field(state, "tasks", list)]
        anchors = [anchor.to(device, then, now) for anchor in found]
        for anchor in anchors:
            check_memory(model, likelihood, anchor.memory, len(anchor.mean), grown)
    except DataError as error:
        raise CheckpointError(f"a saved memory does not fit the model: {error}") from error
    return anchors
