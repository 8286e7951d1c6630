"""The first task, which is the same for every method that only adds a penalty: one run saves it, the others load it."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import torch
from filelock import FileLock

from fromp.foundation import storage
from fromp.foundation.state import field, set_generator, whole
from fromp.lab.engine.fit import Fit
from fromp.lab.results.plan import Plan
from fromp.lab.settings import names


class FirstTask:
    """The weights and the random state after a seed's first task, in a folder that all runs with its settings name."""

    def __init__(self, root: Path, plan: Plan, seed: int) -> None:
        network = {name: getattr(plan.network, name) for name in names(plan.network)}
        told = [plan.benchmark, seed, asdict(plan.training.of_task(0)), plan.stream.validation, network]
        self.path = root / hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]

    def load(self, fit: Fit) -> float | None:
        """Load the end of the task into a fit, if another run has saved it; returns the seconds that it took then."""
        if not (self.path / storage.MANIFEST).exists():
            return None
        state = storage.read(self.path, "first task")
        model, generator = fit.method.model, torch.Generator()
        weights, seconds = whole(state, "model", model.state_dict()), field(state, "seconds", float)
        set_generator(generator, state, "random")
        norm = field(state, "largest_norm", float, type(None))
        fit.load_state_dict({"step": fit.num_steps, "moments": {}, "largest_norm": norm})
        model.load_state_dict(weights)
        torch.set_rng_state(generator.get_state())
        return seconds

    def save(self, fit: Fit, seconds: float) -> None:
        """Save the task after its last step, unless another run has saved it already."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path.parent / ".lock"):
            if not (self.path / storage.MANIFEST).exists():
                model, random = fit.method.model.state_dict(), torch.get_rng_state()
                state = {"model": model, "random": random, "seconds": seconds, "largest_norm": fit.known_norm}
                storage.write(self.path, "first task", state)
