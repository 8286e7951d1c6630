"""How far the GGN from random signs is off, by the number of examples."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fromp import gp
from fromp.curvature import Curvature, SignGGN
from fromp.derivatives.model import trainable
from fromp.foundation.examples import TensorExamples
from fromp.lab import data
from fromp.lab.bench.signs import FEATURES, POINTS, PRECISION, relative_errors
from fromp.learn.networks import initialise, mlp
from fromp.likelihoods import Categorical

SIZES = {"mnist": (1000, 4000, 16_000, 60_000), "blobs": (1000, 4000, 16_000)}
STEPS, BATCH = 600, 100


def errors_by_examples() -> Iterator[dict[str, Any]]:
    """Of MNIST, 10 classes, and of Gaussian blobs, 100 classes: networks of two layers of 100, 600 steps of Adam."""
    for source, sizes in SIZES.items():
        for examples in sizes:
            model, x, y = learned(source, examples)
            memory = x[torch.randperm(examples, generator=torch.Generator().manual_seed(1))[:POINTS]]
            task, names = TensorExamples(x, y), trainable(model)

            def precision(
                curvature: Curvature, seed: int, model: nn.Module = model, task: Any = task, names: Any = names
            ) -> dict[str, Tensor]:
                found = gp.ggn_diagonal(model, names, task, Categorical(), curvature=curvature, seed=seed)
                return {name: PRECISION + value for name, value in found.items()}

            errors = relative_errors(model, memory, precision, {"signs": SignGGN()})
            yield {"data": source, "classes": int(y.max()) + 1, "examples": examples, "relative_error": errors["signs"]}


def learned(source: str, examples: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A network that has learned so many examples, and those."""
    generator = torch.Generator().manual_seed(0)
    if source == "mnist":
        whole = data.load("mnist").floats()
        chosen = torch.randperm(len(whole.train_y), generator=generator)[:examples]
        x, y = whole.train_x[chosen].flatten(1), whole.train_y[chosen]
    else:
        y = torch.arange(examples) % 100
        x = torch.randn(100, FEATURES, generator=generator)[y] + torch.randn(examples, FEATURES, generator=generator)
    model = initialise(lambda: mlp(x.shape[1], (100, 100), int(y.max()) + 1), seed=0)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(STEPS):
        chosen = torch.randint(examples, (BATCH,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(x[chosen]), y[chosen]).backward()
        optimizer.step()
    return model, x, y
