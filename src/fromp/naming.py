"""The names under which a folder records what a regulariser is made of; a user's own is given again at `load`."""

from collections.abc import Mapping
from typing import Any

from fromp.curvature import Curvature, ExactGGN, SignGGN
from fromp.foundation.errors import CheckpointError
from fromp.foundation.state import State, field
from fromp.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, Poisson, Tokens
from fromp.memory import Score, Select, least_memorable, memorability, per_class, random_score, top
from fromp.metrics.full_kernel import FullKernel
from fromp.metrics.half_kernel import HalfKernel
from fromp.metrics.identity_kernel import IdentityKernel
from fromp.metrics.kernel import Kernel
from fromp.refresh import Refresh, at_every_end, never, when_doubled

LIKELIHOODS: dict[str, type[Likelihood]] = {c.__name__: c for c in (Categorical, Tokens, Bernoulli, Gaussian, Poisson)}
CURVATURES: dict[str, type[Curvature]] = {c.__name__: c for c in (ExactGGN, SignGGN)}
KERNELS: dict[str, type[Kernel]] = {c.__name__: c for c in (FullKernel, HalfKernel, IdentityKernel)}
SCORES: dict[str, Score] = {f.__name__: f for f in (memorability, least_memorable, random_score)}
SELECTIONS: dict[str, Select] = {f.__name__: f for f in (per_class, top)}

REFRESHES: dict[str, Refresh] = {f.__name__: f for f in (at_every_end, when_doubled, never)}


def name_of(known: Mapping[str, Any], thing: Any) -> str:
    """The name under which `named` finds a thing of ours again; any other gets one that it will not find."""
    name = getattr(thing, "__name__", repr(thing))
    return name if known.get(name) is thing else f"{getattr(thing, '__module__', '')}.{name}"


def named(known: Mapping[str, Any], name: str, role: str) -> Any:
    """The thing of ours with that name, or an error that asks for the user's own."""
    if name not in known:
        raise CheckpointError(f"the saved {role} '{name}' is your own; give it again: load(..., {role}=...).")
    return known[name]


def built(known: Mapping[str, Any], saved: State, role: str) -> Any:
    """A thing of ours with the settings that it was saved with."""
    return named(known, field(saved, "name", str), role)(**field(saved, "settings", dict))


def description(known: Mapping[str, Any], thing: Any) -> State:
    """What `built` makes it of again."""
    return {"name": name_of(known, type(thing)), "settings": thing.settings()}
