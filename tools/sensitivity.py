"""Accuracy against settings, from what `fromp tune` has tried of them: results/sensitivity/BENCHMARK."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from fromp.lab.results import selection
from fromp.lab.results.format import Table, percent
from fromp.lab.results.plan import Plan
from fromp.lab.results.record import Experiment
from fromp.lab.settings import as_text

HELD_OUT = "validation"


def multiples(folder: Path, settings: Sequence[str]) -> str:
    """One row per setting, one column per multiple of its preset: accuracy on held-out training data."""
    cells: dict[tuple[str, float], str] = {}
    presets: dict[str, float] = {}
    for found in _candidates(folder):
        own = Plan.of(found.benchmark, found.method).flat()
        presets |= {name: own[name] for name in settings}
        changed = {name: value for name, value in found.changed().items() if name != HELD_OUT}
        if len(changed) > 1 or not changed.keys() <= set(settings):
            continue
        places = [(name, value / own[name]) for name, value in changed.items()] or [(name, 1.0) for name in settings]
        cells |= dict.fromkeys(((name, round(factor, 6)) for name, factor in places), _accuracy(found))
    factors = sorted({factor for _, factor in cells})
    rows = [
        [f"`{name}={as_text(presets[name])}`", *(cells.get((name, factor), "–") for factor in factors)]
        for name in settings
    ]
    return Table(["preset", *(f"x {factor:g}" for factor in factors)], rows).markdown()


def _candidates(folder: Path) -> Iterator[Experiment]:
    for file in sorted(folder.rglob(selection.FILE)):
        yield from selection.read(file)


def _accuracy(found: Experiment) -> str:
    values = found.summary("average_accuracy")
    return f"{percent(values)} ({values.n})" if values else "–"
