"""What to run: a benchmark, a method and their settings, each with one owner."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field
from torch import nn

from fromp.foundation.errors import FrompError
from fromp.lab import plugins
from fromp.lab.benchmarks import catalogue
from fromp.lab.benchmarks.networks import Network
from fromp.lab.benchmarks.streams import Stream, StreamOptions
from fromp.lab.benchmarks.training import Training
from fromp.lab.methods import MethodCard, method
from fromp.lab.settings import AtLeastOne, Positive, changed, checked, names, nearest, require_known, settings


@settings
class Given:
    """The task boundaries are given."""

    boundaries: Literal["given"] = "given"
    """Where tasks begin: given, or found by the detector calibrated, divergence or welch."""


@settings
class Found:
    """A detector finds where tasks begin, by rank-sum tests."""

    boundaries: Literal["calibrated", "divergence"] = "calibrated"
    false_alarm: Annotated[float, Field(gt=0, lt=1)] = 1e-6
    """Probability of a false alarm of the detectors calibrated and divergence, for each minibatch."""
    reservoir: AtLeastOne = 5000
    """Examples of the present task that are kept until its end is found."""


@settings
class FoundByWelch:
    """A detector finds where tasks begin, by Welch's t."""

    boundaries: Literal["welch"] = "welch"
    threshold: Positive = 1.3
    """Value of Welch's t above which a task is new."""
    reservoir: AtLeastOne = 5000
    """Examples of the present task that are kept until its end is found."""


Boundaries: TypeAlias = Given | Found | FoundByWelch
BOUNDARIES: dict[str, type[Given] | type[Found] | type[FoundByWelch]] = {
    "given": Given, "calibrated": Found, "divergence": Found, "welch": FoundByWelch,
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """What to run; two equal plans give the same numbers."""

    benchmark: str
    method: str
    stream: StreamOptions
    network: Network
    training: Training
    options: Any  # the method's own settings
    boundaries: Boundaries

    @classmethod
    def of(cls, benchmark: str, method_name: str, /, **changes: Any) -> "Plan":
        """A benchmark's settings for a method, with some of them changed; text is read as the type that each has."""
        card, preset = method(method_name), cls._preset(benchmark, method_name)
        changes = {key: None if str(value).lower() == "none" else value for key, value in changes.items()}
        plan = preset._with(changes)
        before, after = preset.flat(), plan.flat()
        for key, other in card.shrinks_with.items():
            if key not in changes and after[other] != before[other]:
                after[key] = changes[key] = before[key] * before[other] / after[other]
        for key, other in card.grows_with.items():
            if key not in changes and before[key] is not None and after[other] != before[other]:
                changes[key] = before[key] * (after[other] or 1.0) / (before[other] or 1.0)
        return plan._with(changes)._consistent()

    @classmethod
    def read(cls, recorded: Mapping[str, Any]) -> "Plan":
        """The plan that a result file has, as far as its settings are still known; the others are the preset's."""
        then, preset = as_of_today(recorded["settings"]), cls._preset(recorded["benchmark"], recorded["method"])
        known = preset._with({"boundaries": then.get("boundaries", "given")}).flat()
        return preset._with({key: value for key, value in then.items() if key in known})

    @classmethod
    def changes(cls, recorded: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of a result file that are not the preset's, by their present names."""
        preset, boundaries = cls._preset(recorded["benchmark"], recorded["method"]), cls.read(recorded).boundaries
        then, different = preset._then(recorded), preset.differences(recorded)
        different += [field.name for field in fields(boundaries) if getattr(boundaries, field.name) != field.default]
        return {key: value for key, value in then.items() if key in different}

    @classmethod
    def _preset(cls, benchmark: str, method_name: str) -> "Plan":
        chosen, card = catalogue.benchmark(benchmark), method(method_name)
        values = _chosen(card, benchmark)
        if "memory" in names(card.settings):
            values = {"memory": chosen.memory, **values}
        own = {key: values.pop(key) for key in names(card.settings) if key in values}
        stream, options = StreamOptions(tasks=chosen.tasks), checked(lambda: card.settings(**own))
        plan = cls(benchmark, method_name, stream, chosen.network, chosen.training, options, Given())
        return plan._with(values)

    @property
    def card(self) -> MethodCard:
        """The method's card."""
        return method(self.method)

    @property
    def parts(self) -> Sequence[Any]:
        """The owners of the settings."""
        return self.stream, self.network, self.training, self.options, self.boundaries

    @property
    def memory(self) -> int:
        """Examples kept of each task, or those that a method which keeps any would."""
        return getattr(self.options, "memory", catalogue.benchmark(self.benchmark).memory)

    @property
    def settings(self) -> Any:
        """All settings as attributes, for whoever builds the method."""
        return SimpleNamespace(**{name: getattr(part, name) for part in self.parts for name in names(part)})

    def flat(self) -> dict[str, Any]:
        """The settings that exist for this plan, by name, as JSON values."""
        return {key: list(v) if isinstance(v, tuple) else v for key, v in vars(self.settings).items()}

    def as_json(self) -> dict[str, Any]:
        """The plan as it stands in results.json."""
        return {"benchmark": self.benchmark, "method": self.method, "settings": self.flat()}

    def make(self, seed: int) -> tuple[Stream, nn.Module]:
        """The stream and the network of one seed."""
        return catalogue.benchmark(self.benchmark).make(self.stream, self.network, seed)

    def untuned(self) -> bool:
        """Whether the method has a strength that was not chosen for this benchmark."""
        chosen = _chosen(self.card, self.benchmark)
        return "strength" in names(self.options) and "strength" not in chosen

    def differences(self, recorded: Mapping[str, Any]) -> list[str]:
        """The settings that a plan read from a file has otherwise; one that did not exist then had its default value.

        A setting that grows with another one is compared in units of it.
        """
        different = [key for key in ("benchmark", "method") if recorded[key] != getattr(self, key)]
        own, then = self.flat(), self._then(recorded)
        for key, other in self.card.grows_with.items():
            if own.get(key) and then.get(other) is not None:
                own[key] *= (then[other] or 1.0) / (own[other] or 1.0)
        return different + [key for key, value in own.items() if not _equal(value, then.get(key))]

    def _then(self, recorded: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of a result file, in its order; then those that it does not have, at their defaults."""
        every = [field for part in self.parts if is_dataclass(part) for field in fields(part)]
        defaults = {field.name: field.default for field in every if field.default is not MISSING}
        then = as_of_today(recorded["settings"])
        return {**then, **{key: value for key, value in defaults.items() if key not in then}}

    def _with(self, changes: Mapping[str, Any]) -> "Plan":
        boundaries = self.boundaries
        if "boundaries" in changes:
            require_known("detector", changes["boundaries"], BOUNDARIES)
            boundaries = BOUNDARIES[changes["boundaries"]]()
        parts = *self.parts[:-1], boundaries
        own = names(self.options)
        others = [name for part in parts if part is not self.options for name in names(part)]
        for key in changes:
            if key not in (*own, *others):
                near = nearest(key, (*own, *others), cutoff=0.55)
                raise FrompError(
                    f"{self.method} has no setting {key}; it has {', '.join(own) or 'none of its own'}. "
                    + (f"Did you mean {near}? " if near else "")
                    + f"All methods on {self.benchmark} have {', '.join(others)}."
                )
        return Plan(self.benchmark, self.method, *(changed(part, changes) for part in parts))

    def _consistent(self) -> "Plan":
        """The plan, or an error if its parts do not go together."""
        if isinstance(self.boundaries, Given):
            return self
        if self.boundaries.reservoir < self.memory:
            raise FrompError(f"reservoir must be at least memory={self.memory} (got {self.boundaries.reservoir}).")
        if self.training.schedule != "constant":
            raise FrompError(
                f"schedule={self.training.schedule} needs to know how long a task is; "
                "without tasks being announced, use schedule=constant."
            )
        if self.training.late_lr is not None:
            raise FrompError(f"late_lr={self.training.late_lr:g} needs tasks that are announced; set lr alone.")
        return self

    def __reduce__(self) -> Any:
        """As plain values, with the plug-ins that another process has to load first."""
        return _rebuilt, (plugins.loaded(), self.as_json())


def _rebuilt(files: tuple[Path, ...], recorded: Mapping[str, Any]) -> Plan:
    plugins.load(files)
    return Plan.read(recorded)


def comparison(benchmark: str, methods: Iterable[str], changes: Mapping[str, Any]) -> dict[str, Plan]:
    """The plans of several methods; each has the changes of settings that it has, and one that none has is an error."""
    boundaries = {key: value for key, value in changes.items() if key == "boundaries"}
    known = {name: Plan._preset(benchmark, name)._with(boundaries).flat().keys() for name in methods}
    everywhere = set().union(*known.values())
    return {
        name: Plan.of(benchmark, name, **{k: v for k, v in changes.items() if k in own or k not in everywhere})
        for name, own in known.items()
    }


def _chosen(card: MethodCard, benchmark: str) -> dict[str, Any]:
    """A method's preset on a benchmark, or on the one whose settings it shares."""
    return card.preset(catalogue.benchmark(benchmark).tuned_as or benchmark)


def as_of_today(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a result file under their present names.

    Older files have every setting of every method, a `clip` in units of tau, and Adam's betas one by one.
    """
    then: dict[str, Any] = {"boundaries": "given"} if "boundaries" not in recorded else {}
    for key, value in recorded.items():
        if key == "clip":
            then["clip_norm"] = None if value is None else value * (recorded.get("tau") or 1.0)
        elif key == "beta1":
            then["betas"] = [value, recorded["beta2"]]
        elif key != "beta2":
            then[key] = value
    return then


def parse_setting(text: str) -> tuple[str, str]:
    """`KEY=VALUE` as a setting's name and the text of its value."""
    key, equals, value = text.partition("=")
    if not equals:
        raise FrompError(f"'{text}' is not a setting; write KEY=VALUE, as in lr=0.001.")
    return key.strip().replace("-", "_"), value


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float | int):
        return math.isclose(one, other, rel_tol=1e-9)
    return bool(list(one) == list(other) if isinstance(one, list) and isinstance(other, list | tuple) else one == other)
