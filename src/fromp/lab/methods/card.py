"""A method's card: all that the laboratory knows of it, in one place, beside the method itself."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from torch import Tensor, nn

from fromp.foundation.errors import FrompError
from fromp.lab.methods.base import Method
from fromp.lab.settings import require_known, settings
from fromp.likelihoods import Likelihood

# task -> the places in its data of the examples that another run has kept of it, and their scores
Kept: TypeAlias = Callable[[int], tuple[Tensor, Tensor]]


@settings
class NoSettings:
    """A method has none of its own."""


@dataclass(frozen=True, kw_only=True)
class MethodCard:
    """A method, and what one has to know to choose it, run it and show it."""

    name: str
    title: str
    build: Callable[[nn.Module, Likelihood, Any, int], Method]
    """Called with the model, the likelihood, all settings of the run by name, and a seed."""
    paper: str = ""
    keeps: str = ""
    """What it keeps of the past."""
    step_cost: str = ""
    """What a step costs beside that of plain training."""
    settings: type = NoSettings
    """Its own; one called `memory` has the benchmark's value unless a preset or the user gives another."""
    needs_memories_of: str | None = None
    """A method that is run first, with the same seed and number of points: `build` has what it kept as `kept` among the
    settings, a `Kept`."""
    needs_task_at_test: bool = False
    """Whether the task label is needed at test time, also with one head."""
    random_memory: bool = False
    """Whether the points it keeps are random ones, whose scores tell nothing."""
    sequential: bool = True
    """Whether one network learns task after task, so that transfer between them means something."""
    colour: int | None = None
    """Its place among the colours and line styles of figures, no other method's; None for the next free one."""
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings other than the benchmark's own and the defaults, by the benchmark's name or a pattern such as `toy*`;
    later ones win."""
    grows_with: Mapping[str, str] = field(default_factory=dict)
    """Settings that change by the same factor as another one, unless they are given."""
    shrinks_with: Mapping[str, str] = field(default_factory=dict)
    """Settings that change by the inverse factor of another one, unless they are given."""

    def preset(self, benchmark: str) -> dict[str, Any]:
        """Its settings on a benchmark that are not the benchmark's own or the defaults."""
        found: dict[str, Any] = {}
        for pattern, values in self.presets.items():
            if fnmatchcase(benchmark, pattern):
                found |= values
        return found


METHODS: dict[str, MethodCard] = {}

# Presets of methods that clip only where they are to share FROMP's first task.
UNCLIPPED: dict[str, dict[str, Any]] = {"*": {"clip_norm": None}, "split-cifar*": {"clip_norm": 1000.0}}

# How the streams without task labels at test time are fitted, where a method has been tuned on them.
DOMAIN: dict[str, Any] = {"epochs": 3, "lr": 1e-3, "schedule": "linear-decay", "clip_norm": None}
CLASSES: dict[str, Any] = {"epochs": 5, "batch_size": 64, "lr": 5e-4, "schedule": "linear-decay", "clip_norm": None}


def register(card: MethodCard) -> None:
    """Let a method be known by its name."""
    if card.name in METHODS:
        raise FrompError(f"there is a method '{card.name}' already; give this one another name.")
    METHODS[card.name] = card


def places(methods: Sequence[str]) -> list[int]:
    """The place of each among the colours of figures: a method's own, the first time it comes, else a free one."""
    taken = {card.colour for card in METHODS.values() if card.colour is not None}
    free = (place for place in itertools.count() if place not in taken)
    found: dict[int, None] = {}
    for name in methods:
        own = METHODS[name].colour if name in METHODS else None
        found[next(free) if own is None or own in found else own] = None
    return list(found)


def method(name: str) -> MethodCard:
    """The card of that name, or an error that names the nearest."""
    require_known("method", name, METHODS)
    return METHODS[name]
