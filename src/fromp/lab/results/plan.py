"""What to run: a benchmark, a method and their settings."""

import inspect
import json
from dataclasses import MISSING, dataclass, fields
from typing import Any

from fromp.lab.benchmarks.catalogue import Settings, as_json
from fromp.lab.benchmarks.training import Training
from fromp.lab.methods.registry import METHODS
from fromp.taskfree.detectors import DETECTORS


@dataclass(frozen=True)
class Plan:
    """What to run; two equal plans give the same numbers."""

    benchmark: str
    method: str
    settings: Settings

    def as_json(self) -> dict[str, Any]:
        """The plan as it stands in results.json."""
        return {"benchmark": self.benchmark, "method": self.method, "settings": as_json(self.settings)}

    def matters(self) -> set[str]:
        """The settings that the numbers depend on: a method is built with some of them only."""
        settings = self.settings
        known = {field.name for field in fields(Settings)}
        found = {"tasks", "validation", "boundaries", "hidden", "activation"}
        found |= {field.name for field in fields(Training)}
        found |= set(inspect.signature(METHODS[self.method].build).parameters)
        if settings.clip is not None:
            found.add("tau")  # which it is in units of
        if settings.boundaries != "given":
            found |= {"reservoir", "memory", *inspect.signature(DETECTORS[settings.boundaries]).parameters}
        return found & known

    def differences(self, found: dict[str, Any]) -> list[str]:
        """What differs in a plan read from a file; a setting that did not exist then had its default value."""
        wanted = json.loads(json.dumps(self.as_json()))
        defaults = {f.name: f.default for f in fields(Settings) if f.default is not MISSING}
        then = {**json.loads(json.dumps(defaults)), **found["settings"]}
        different = [key for key in ("benchmark", "method") if found[key] != wanted[key]]
        matters = self.matters()
        return different + [key for key, v in wanted["settings"].items() if key in matters and then.get(key) != v]
