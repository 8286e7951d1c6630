"""Figures of the paper, from what is kept of the runs; an error says what is missing."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.figure import Figure

from fromp.derivatives.model import trainable
from fromp.foundation.errors import FrompError
from fromp.gp import ggn_diagonal
from fromp.lab.methods import METHODS
from fromp.lab.paper import figures as paper_figures
from fromp.lab.paper.required import Required, ResultsFolder
from fromp.lab.paper.tables import benchmark_title, method_title
from fromp.lab.report import plane
from fromp.lab.report.figures.plane import Boundary, toy_strip
from fromp.lab.report.figures.style import Array
from fromp.lab.report.gallery import drawable
from fromp.lab.results.format import seeds_of
from fromp.lab.results.record import Experiment
from fromp.likelihoods import Categorical
from fromp.memory import assess, per_class

PICTURES = 20  # pictures at either end of the order


class MissingRuns(FrompError):
    """What a figure shows has not been run, or its snapshots are not here."""


def task_bars(kept: ResultsFolder, needed: Sequence[Required]) -> Figure:
    """The accuracy on each task after the last; methods that do not learn task after task are limits, not bars."""
    last = {
        runs.method: np.array([seed.last for seed in found.finished])
        for runs in needed
        if (found := kept.experiment(runs))
    }
    limits = {method: values for method, values in last.items() if not METHODS[method].sequential}
    methods = {method: values for method, values in last.items() if method not in limits}
    if not methods:
        raise MissingRuns("none of the methods has been run")
    return paper_figures.task_bars(benchmark_title(needed[0].benchmark), methods, limits)


def against(kept: ResultsFolder, needed: Sequence[Required], setting: str, label: str) -> Figure:
    """The average accuracy against a setting, one line per method."""
    by_method: dict[str, dict[float, Array]] = {}
    for runs in needed:
        if found := kept.experiment(runs):
            values = 100 * np.array([seed.average_accuracy for seed in found.finished])
            by_method.setdefault(runs.method, {})[found.settings[setting]] = values
    if max(map(len, by_method.values()), default=0) < 2:
        raise MissingRuns(f"fewer than two values of {setting} have been run")
    return paper_figures.against(benchmark_title(needed[0].benchmark), by_method, label)


def memorable(kept: ResultsFolder, needed: Sequence[Required]) -> Figure:
    """The examples of the first task with the highest trace of Lambda, and with the lowest, as many of each class."""
    found, seed = _pictured(kept, needed[0])
    stream, model = found.make(seed)
    model.load_state_dict(found.snapshots(seed)[0].weights)
    task = stream.task(0)
    scores, classes = assess(model, task.train, Categorical(), torch.Generator(), task.head)
    ends = []
    for order in (scores, -scores):
        pictures = stream.picture(0, task.train.take(per_class(order, classes, PICTURES))[0])  # type: ignore[arg-type]
        if pictures is None:
            raise MissingRuns(f"the inputs of {needed[0].benchmark} are not images")
        ends.append(drawable(pictures))
    return paper_figures.memorable(f"{_of_seed(needed[0], seed)}, after task 1", ends[0], ends[1])


def toy_tasks(kept: ResultsFolder, needed: Sequence[Required]) -> Figure:
    """The decision boundary after the first task, the second and the last."""
    found, seed = _pictured(kept, needed[0])
    every = plane.boundaries(found, seed)
    return toy_strip([boundary for boundary in every if boundary.task in (1, 2, len(every))])


def toy_seeds(kept: ResultsFolder, needed: Sequence[Required]) -> Figure:
    """The last decision boundary of the middle seeds."""
    (runs,) = needed
    found, _ = _pictured(kept, runs)
    drawn = [_last(found, seed) for seed in found.middle_seeds(runs.pictures)]
    return toy_strip(*zip(*drawn, strict=True))


def toy_methods(kept: ResultsFolder, needed: Sequence[Required]) -> Figure:
    """The last decision boundary of the middle seed of each method."""
    drawn = []
    for runs in needed:
        found, seed = _pictured(kept, runs)
        boundary, accuracy = _last(found, seed)
        drawn.append((boundary, f"{method_title(runs)}, {accuracy} (middle of {seeds_of([len(found.finished)])})"))
    return toy_strip(*zip(*drawn, strict=True))


def entropies(kept: ResultsFolder, needed: Sequence[Required]) -> Figure:
    """The entropy of each weight's Gaussian, log(2 pi e v) / 2, layer by layer, after each task."""
    found, seed = _pictured(kept, needed[0])
    stream, model = found.make(seed)
    names = trainable(model)
    precision = {name: found.settings["prior_precision"] * torch.ones_like(w) for name, w in model.named_parameters()}
    by_task = []
    for snapshot, task in zip(found.snapshots(seed), stream, strict=True):
        model.load_state_dict(snapshot.weights)
        added = ggn_diagonal(model, names, task.train, Categorical(), task.head)
        precision = {name: precision[name] + added[name] for name in names}
        layers: dict[str, list[torch.Tensor]] = {}
        for name in names:
            entropy = 0.5 * (math.log(2 * math.pi * math.e) - precision[name].detach().double().log())
            layers.setdefault(name.rpartition(".")[0], []).append(entropy.flatten())
        by_task.append([torch.cat(parts).numpy() for parts in layers.values()])
    return paper_figures.entropies(_of_seed(needed[0], seed), by_task)


def task_boundaries(kept: ResultsFolder, needed: Sequence[Required]) -> Figure:
    """The statistics of the paper's detector, minibatch after minibatch."""
    found, seed = _pictured(kept, needed[0])
    trace = found.trace(seed)
    if trace is None:
        raise MissingRuns(f"seed {seed} of {needed[0].place} has left no trace of its detector")
    return paper_figures.statistics(
        _of_seed(needed[0], seed),
        {name: values.numpy() for name, values in trace.values.items()},
        trace.true,
        trace.found,
    )


def _pictured(kept: ResultsFolder, runs: Required) -> tuple[Experiment, int]:
    """The runs and their middle seed, whose snapshots are there."""
    found = kept.experiment(runs)
    if found is None:
        raise MissingRuns(f"{runs.place} has not been run")
    if kept.unpictured(runs):
        raise MissingRuns(f"the snapshots of {runs.place} are not kept with the results")
    return found, found.middle_seed


def _of_seed(runs: Required, seed: int) -> str:
    return f"{method_title(runs)} on {benchmark_title(runs.benchmark)}, seed {seed}"


def _last(found: Experiment, seed: int) -> tuple[Boundary, str]:
    """A seed's last decision boundary, and its accuracy."""
    (accuracy,) = (result.average_accuracy or 0.0 for result in found.finished if result.seed == seed)
    return plane.boundaries(found, seed)[-1], f"{100 * accuracy:.1f} %"
