"""The first task, which every method that only adds a penalty learns alike: one run leaves it, the others take it."""

import hashlib
import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor, nn

from fromp.derivatives.model import device_of
from fromp.foundation import storage
from fromp.gp import ggn_diagonal
from fromp.lab.benchmarks.catalogue import Settings
from fromp.lab.benchmarks.streams import Task
from fromp.lab.engine.fit import Fit
from fromp.lab.methods.base import Method, under


class FirstTask:
    """What runs with the same settings, without a past, share of a seed's first task, in a folder that they all name.

    Its weights and the random state after it, what methods have written down meanwhile, and the GGN diagonal of its
    data.
    """

    def __init__(self, root: Path, benchmark: str, seed: int, settings: Settings, method: str) -> None:
        self.path = root / _name(benchmark, seed, settings)
        self._method, self._taken = method, False

    def take(self, method: Method, fit: Fit) -> float | None:
        """Bring the method to the task's end, if another run has left it; the seconds that it took then.

        The clip may be another one, if neither has come into play.
        """
        base, _ = self.path.name.split("-")
        for path in [self.path, *sorted(self.path.parent.glob(f"{base}-*"))]:
            if not (path / storage.MANIFEST).exists():
                continue
            tensors, told = storage.read(path, "first task")
            recorded, records = under(tensors, f"{self._method}."), _records(method)
            if not recorded.keys() >= records.keys():
                continue
            mine, its, norm = (
                math.inf if v is None else v for v in (fit.settings.clip, told["clip"], told["largest_norm"])
            )
            if mine == its or norm + 1e-6 < min(mine, its):  # as clip_grad_norm_ counts
                method.model.load_state_dict(under(tensors, "model."))
                if records:
                    of_method, state = method.state()
                    method.restore(of_method | recorded, state)
                torch.set_rng_state(tensors["random"])
                fit.largest_norm, fit.step = norm, fit.num_steps
                self.path, self._taken = path, True
                return float(told["seconds"])
        return None

    def leave(self, method: Method, fit: Fit, seconds: float) -> None:
        """Write the task down as it is after its last step, unless that is where it comes from."""
        if self._taken:
            return
        tensors = {f"model.{name}": value for name, value in method.model.state_dict().items()}
        tensors |= {f"{self._method}.{name}": value for name, value in _records(method).items()}
        told = {"seconds": seconds, "largest_norm": fit.known_norm, "clip": fit.settings.clip}
        self._write(self.path, "first task", {**tensors, "random": torch.get_rng_state()}, told)

    def end(self, method: Method, task: Task) -> None:
        """`end_task`, with the GGN diagonal that another run has left; else it is computed, and left for others."""
        own, method.curvature = method.curvature, self._curvature
        try:
            method.end_task(task.train, task.head)
        finally:
            method.curvature = own

    def _curvature(self, model: nn.Module, names: tuple[str, ...], *of: Any) -> dict[str, Tensor]:
        path = self.path / f"curvature-{_digest(model)[:16]}"  # of these weights: two runs may have trained at once
        if (path / storage.MANIFEST).exists():
            known, _ = storage.read(path, "curvature")
            if known.keys() >= set(names):
                return {name: known[name].to(device_of(model)) for name in names}
        found = ggn_diagonal(model, names, *of)
        self._write(path, "curvature", found, {})
        return found

    def _write(self, path: Path, kind: str, tensors: dict[str, Tensor], told: dict[str, Any]) -> None:
        """Unless another run, that may have worked at the same time, has been first."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.parent / ".lock"):
            if not (path / storage.MANIFEST).exists():
                storage.write(path, kind, tensors, told)


def _name(benchmark: str, seed: int, settings: Settings) -> str:
    """One name for all runs whose first task must come out the same, up to a mark for how it was clipped."""
    optimisation = settings.optimisation()
    network = [settings.hidden, settings.activation]
    told = [benchmark, seed, asdict(replace(optimisation, clip=None)), settings.validation, *network]
    base, clip = (hashlib.sha256(json.dumps(of).encode()).hexdigest() for of in (told, optimisation.clip))
    return f"{base[:16]}-{clip[:4]}"


def _records(method: Method) -> dict[str, Tensor]:
    """What the method has written down while the task was trained."""
    begin = method.records
    return {name: value for name, value in method.state()[0].items() if name.startswith(begin)} if begin else {}


def _digest(model: nn.Module) -> str:
    """SHA-256 of the weights."""
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
