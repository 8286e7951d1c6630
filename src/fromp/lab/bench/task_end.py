"""What the end of a task and a whole run cost."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fromp import gp
from fromp.derivatives.model import detached, trainable
from fromp.foundation.examples import TensorExamples
from fromp.gp import ggn_diagonal
from fromp.lab.bench.cases import CLASSES, POINTS, SETTINGS
from fromp.lab.bench.timing import interleaved
from fromp.lab.benchmarks.catalogue import BENCHMARKS
from fromp.lab.benchmarks.streams import Permuted
from fromp.lab.data.arrays import Arrays
from fromp.lab.engine.run import Run
from fromp.lab.methods.bounds import FINETUNE
from fromp.lab.results.plan import Plan
from fromp.learn.networks import initialise
from fromp.likelihoods import Categorical
from fromp.memory import assess, memorability


def curvature_costs(name: str, repetitions: int) -> dict[str, Any]:
    """The GGN pass and a task's kernels, each against as many plain backward passes as there are classes."""
    setting = SETTINGS[name]()
    n = {"mlp": 2000, "cnn": 256}[name]
    x, y, memory = setting.images(n), setting.labels(n), setting.images(POINTS)
    names = trainable(setting.model)
    variance = {k: torch.ones_like(w).detach() for k, w in detached(setting.model, names).items()}
    data = TensorExamples(x, y)
    seconds = interleaved(
        {
            "scores": lambda: assess(setting.model, data, Categorical(), setting.generator, None, memorability),
            "backward": lambda: plain_backwards(setting.model, x),
            "ggn": lambda: ggn_diagonal(setting.model, names, data, Categorical()),
            "backward of memory": lambda: plain_backwards(setting.model, memory),
            "kernel": lambda: gp.inverse(gp.kernel(setting.model, memory, Categorical(), variance), 1e-3),
        },
        repetitions,
    )
    return {
        "network": name,
        "examples": n,
        "seconds": seconds,
        "ggn_ratio": seconds["ggn"] / seconds["backward"],
        "kernel_ratio": seconds["kernel"] / seconds["backward of memory"],
    }


def engine_cost(repetitions: int) -> dict[str, Any]:
    """A whole `finetune` run, with its tests, checkpoints and results, against a loop written by hand."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (14_000, 1, 28, 28), generator=generator, dtype=torch.uint8)
    labels = torch.randint(CLASSES, (14_000,), generator=generator)
    images = Arrays(pixels[:12_000], labels[:12_000], pixels[12_000:], labels[12_000:], ())
    stream = Permuted(images, 3, CLASSES, seed=0)
    benchmark = replace(BENCHMARKS["permuted-mnist"], stream=lambda seed: stream)
    plan = Plan.of("permuted-mnist", FINETUNE.name, tasks=3, epochs=5, clip_norm=None)
    settings = plan.training

    def engine() -> None:
        with tempfile.TemporaryDirectory() as path:
            Run(plan, benchmark, 0, Path(path)).complete()

    def by_hand() -> None:
        model = initialise(lambda: plan.network.build(stream), 0)
        for index in range(3):
            x, y = stream.task(index).train.x, stream.task(index).train.y
            assert isinstance(x, torch.Tensor)
            optimizer = torch.optim.Adam(model.parameters(), settings.lr, fused=True)
            for _ in range(settings.epochs):
                for chosen in torch.randperm(len(y)).split(settings.batch_size):
                    optimizer.zero_grad()
                    F.cross_entropy(model(x[chosen]), y[chosen]).backward()
                    optimizer.step()
            with torch.no_grad():
                for test in (stream.task(seen).test for seen in range(index + 1)):
                    (model(test.x).argmax(1) == test.y).float().mean().item()

    seconds = interleaved({"by hand": by_hand, "engine": engine}, repetitions)
    return {"seconds": seconds, "ratio": seconds["engine"] / seconds["by hand"]}


def plain_backwards(model: nn.Module, x: Tensor) -> None:
    """One forward pass and one ordinary backward pass for each class."""
    model.eval()
    f, parameters = model(x), list(model.parameters())
    for c in range(CLASSES):
        torch.autograd.grad(f[:, c].sum(), parameters, retain_graph=True)
