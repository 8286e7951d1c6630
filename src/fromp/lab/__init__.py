"""The laboratory: benchmarks, methods, runs and reports. What a file of one's own needs is offered here."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fromp.lab import data
    from fromp.lab.benchmarks.catalogue import Benchmark
    from fromp.lab.benchmarks.networks import MLP, CifarCNN
    from fromp.lab.benchmarks.streams import Permuted, Split
    from fromp.lab.benchmarks.training import Training
    from fromp.lab.engine.jobs import run
    from fromp.lab.methods.base import Method, Penalised
    from fromp.lab.methods.card import MethodCard
    from fromp.lab.plugins import register

__all__ = [
    "MLP", "Benchmark", "CifarCNN", "Method", "MethodCard", "Penalised", "Permuted", "Split", "Training", "data",
    "register", "run",
]  # fmt: skip

_HOMES = {
    "MLP": "benchmarks.networks", "Benchmark": "benchmarks.catalogue", "CifarCNN": "benchmarks.networks",
    "Method": "methods.base", "Penalised": "methods.base", "MethodCard": "methods.card",
    "Permuted": "benchmarks.streams", "Split": "benchmarks.streams",
    "Training": "benchmarks.training", "register": "plugins", "run": "engine.jobs",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Each name when it is first asked for: the command line prints its help without loading any."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
