"""Whether the means at the memory change without the weights: by an attribute of the model, or at random."""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fromp import gp
from fromp.derivatives.model import dtype_of, evaluating, named_modules
from fromp.foundation.errors import DataError, FrompWarning
from fromp.foundation.inputs import Constant, is_constant
from fromp.likelihoods import Likelihood
from fromp.memory import Held

Attributes = dict[str, Constant]


def attributes(model: nn.Module) -> Attributes:
    """The plain attributes of the model's modules, such as that of `model.task = 1`."""
    return {
        f"{path}.{name}" if path else name: value
        for path, module in named_modules(model).items()
        for name, value in vars(module).items()
        if is_constant(value) and name != "training" and not name.startswith("_")
    }


def means(model: nn.Module, likelihood: Likelihood, held: Sequence[Held]) -> list[Tensor]:
    """The means at each memory, (c, i), on the path of the penalty: without gradients some layers take another."""
    with evaluating(model), torch.enable_grad():
        return [gp.mean(model, a.memory.inputs, likelihood, a.memory.head).T.detach() for a in held]


def check_unmoved(model: nn.Module, likelihood: Likelihood, held: Sequence[Held], then: Attributes) -> None:
    """An error if the means are not where they were fixed, at the very weights of that moment.

    then: the attributes of that moment, or nothing where they are not known. What is drawn at random gives a warning.
    """
    fixed = [anchor.mean for anchor in held]
    now = means(model, likelihood, held)
    place, distance = _farthest(now, fixed)
    if distance <= _rounding(model):
        return
    if _farthest(now, means(model, likelihood, held))[1] > _rounding(model):
        warnings.warn(
            f"the model draws at random in evaluation mode too: its mean at the memory of task {place} differs by "
            f"{distance:.2g} from one pass to the next, and the penalty holds that noise as well; let the model draw "
            "only where self.training is true.",
            FrompWarning,
            stacklevel=4,
        )
        return
    changed = {name: (then[name], value) for name, value in attributes(model).items() if then.get(name, value) != value}
    raise DataError(_explained(place, distance, changed))


def check_attributes(model: nn.Module, likelihood: Likelihood, held: Sequence[Held], then: Attributes) -> None:
    """An error if the means at the memory depend on an attribute of the model that has changed since `then`.

    A float may follow a schedule, such as that of a temperature, and is left out.
    """
    changed = {
        name: (then[name], value)
        for name, value in attributes(model).items()
        if then.get(name, value) != value and not isinstance(value, float)
    }
    if not changed or not held:
        return
    now = means(model, likelihood, held)
    with _set(model, {name: before for name, (before, _) in changed.items()}):
        place, distance = _farthest(now, means(model, likelihood, held))
    if distance > _rounding(model):
        raise DataError(_explained(place, distance, changed))


def _explained(place: int, distance: float, changed: Mapping[str, tuple[Constant, Constant]]) -> str:
    if changed:
        name, (before, after) = next(iter(changed.items()))
        cause = f"model.{name} has changed from {before!r} to {after!r} since then"
        way = f"end_task(x, y, {name.split('.')[-1]}={before!r})"
    else:
        cause = "its forward depends on something beside its weights and inputs, such as an attribute (model.task = 1)"
        way = "end_task(x, y, task=1)"
    return (
        f"the model's mean at the memory of task {place} has changed by {distance:.2g} of its size, and no weight has: "
        f"{cause}. Make it an argument of forward and give it with each task, as in {way}; it is kept with the memory."
    )


def _farthest(now: Sequence[Tensor], then: Sequence[Tensor]) -> tuple[int, float]:
    """The task whose means are farthest apart, and how far, as a share of the largest of them."""
    apart = [_apart(a, b) for a, b in zip(now, then, strict=True)]
    place = max(range(len(apart)), key=apart.__getitem__)
    return place, apart[place]


def _apart(now: Tensor, then: Tensor) -> float:
    if now.shape != then.shape:
        return math.inf
    return float((now - then).abs().max() / then.abs().max().clamp_min(torch.finfo(then.dtype).tiny))


def _rounding(model: nn.Module) -> float:
    """More than another order of the same sums makes of a mean, and less than any change that matters."""
    return max(1e-3, torch.finfo(dtype_of(model)).eps ** 0.5)


@contextmanager
def _set(model: nn.Module, values: Attributes) -> Iterator[None]:
    """Attributes with other values inside, past any property that would do more than that."""
    modules = named_modules(model)
    places = {name: (vars(modules[name.rpartition(".")[0]]), name.rpartition(".")[2]) for name in values}
    before = {name: of[key] for name, (of, key) in places.items()}
    try:
        for name, (of, key) in places.items():
            of[key] = values[name]
        yield
    finally:
        for name, (of, key) in places.items():
            of[key] = before[name]
