"""What to do with batch norm: an MLP on permuted digits with FROMP's defaults, and four ways to normalise.

python tools/batch_norm.py       results/defaults/batch_norm.json, about two minutes

The digits once as they are, and once with the inputs of each task four times as large as those of the one before.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import torch
from safety_grid import RESULTS
from small_streams import OPTIMISERS, STEPS, TASKS, Course, average, course, learn, score, tensors
from torch import nn

from fromp.foundation import storage
from fromp.foundation.examples import TensorExamples
from fromp.lab.results.environment import environment
from fromp.lab.results.format import Table, percent
from fromp.lab.results.metrics import summarise
from fromp.regulariser import FROMP

STREAM, OPTIMISER, MEMORY, SEEDS = "digits, permuted", "Adam 3e-3", 50, (0, 1, 2)
FACTORS = {"one scale": 1.0, "growing scale": 4.0}  # of a task's inputs to those of the task before

Norm = Callable[[], nn.Module]
Ended = Callable[[nn.Module, int], None]


def network(norm: Norm) -> nn.Module:
    """Two hidden layers, each normalised before its ReLUs."""
    hidden = (nn.Linear(64, 64), norm(), nn.ReLU(), nn.Linear(64, 64), norm(), nn.ReLU())
    return nn.Sequential(*hidden, nn.Linear(64, 10))


def freeze(model: nn.Module, task: int) -> None:
    """Batch norm stays in evaluation mode from the first task on, also after `model.train()`."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eval()
            object.__setattr__(module, "train", lambda mode=True, kept=module: kept)


def leave(model: nn.Module, task: int) -> None:
    """Statistics go on running."""


WAYS: dict[str, tuple[Norm, Ended]] = {
    "batch norm, running statistics": (partial(nn.BatchNorm1d, 64), leave),
    "batch norm, frozen after the first task": (partial(nn.BatchNorm1d, 64), freeze),
    "group norm, 8 groups": (partial(nn.GroupNorm, 8, 64), leave),
    "none": (nn.Identity, leave),
}


def scaled(data: Course, factor: float) -> Course:
    """The inputs of task k times factor^k."""
    tasks = []
    for k, task in enumerate(data.tasks):
        train, test = (TensorExamples(x * factor**k, y) for x, y in map(tensors, (task.train, task.test)))
        tasks.append(replace(task, train=train, test=test))
    return replace(data, tasks=tasks)


def run(inputs: str, name: str, seed: int) -> dict[str, Any]:
    """Scores on the test part after the last task: of all tasks, and of the first and the last."""
    norm, ended = WAYS[name]
    data = scaled(course(STREAM, seed, held_out=False), FACTORS[inputs])
    make = partial(FROMP, memory_size=MEMORY)
    model, _ = learn(data, OPTIMISERS[OPTIMISER], make, seed, network=partial(network, norm), ended=ended)
    first, last = (score(model, data, task) for task in (data.tasks[0], data.tasks[-1]))
    return {"inputs": inputs, "way": name, "seed": seed, "average": average(model, data), "first": first, "last": last}


def table(found: dict[str, Any]) -> str:
    """One row per way: all tasks, the first and the last after the last one has been learned."""
    rows = []
    for inputs, way in dict.fromkeys((row["inputs"], row["way"]) for row in found["rows"]):
        of = [row for row in found["rows"] if (row["inputs"], row["way"]) == (inputs, way)]
        cells = (percent(summarise([row[key] for row in of])) for key in ("average", "first", "last"))
        rows.append([inputs, way, *cells])
    return Table(["inputs", "", "all tasks", "first task", "last task"], rows).markdown()


if __name__ == "__main__":
    torch.set_num_threads(1)
    rows = []
    for inputs, seed, way in product(FACTORS, SEEDS, WAYS):
        rows.append(run(inputs, way, seed))
        print(*rows[-1].values(), sep="\t", flush=True)
    settings = {
        "stream": STREAM, "optimiser": OPTIMISER, "memory_size": MEMORY, "tasks": TASKS, "steps": STEPS
    }  # fmt: skip
    kept = {"settings": settings, "environment": environment(), "rows": rows}
    RESULTS.mkdir(parents=True, exist_ok=True)
    storage.replace(RESULTS / "batch_norm.json", (json.dumps(kept, indent=1) + "\n").encode())
