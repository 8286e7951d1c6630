"""What a step costs."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad, vmap

from fromp.derivatives.model import evaluating
from fromp.foundation.collectives import ALONE
from fromp.foundation.examples import TensorExamples
from fromp.lab.bench.cases import CLASSES, POINTS, SETTINGS, Case
from fromp.lab.bench.timing import interleaved
from fromp.lab.engine.run import build_method
from fromp.lab.methods import METHODS
from fromp.lab.methods.base import HeadBatch, Method
from fromp.lab.methods.bounds import FINETUNE
from fromp.lab.results.plan import Plan
from fromp.metrics.full_kernel import FullKernel
from fromp.prior import FunctionalPrior


def step_costs(name: str, tasks: tuple[int, ...], repetitions: int) -> Iterator[dict[str, Any]]:
    """A step with the penalty against a plain Adam step on as many samples, for several numbers of past tasks."""
    setting = SETTINGS[name]()
    x, y = setting.images(setting.batch_size), setting.labels(setting.batch_size)
    for past in tasks:
        prior = setting.prior(past)
        more = setting.batch_size + past * POINTS
        # As many samples in the fastest plain way: one batch for the MLP, batches of the usual size for the CNN.
        size = more if name == "mlp" else setting.batch_size
        chunks = list(zip(setting.images(more).split(size), setting.labels(more).split(size), strict=True))
        drawn = torch.tensor([0, past - 1]).unique()
        cases: dict[str, Callable[[], object]] = {
            "plain": lambda chunks=chunks: plain_step(setting, chunks),  # type: ignore[misc]
            "fromp": lambda prior=prior: fromp_step(setting, x, y, prior, None),  # type: ignore[misc]
            "two tasks a step": lambda prior=prior, d=drawn: fromp_step(setting, x, y, prior, d),  # type: ignore[misc]
        }
        seconds = interleaved(cases, repetitions)
        if past in (1, 5) and name == "mlp":
            seconds |= interleaved({"slow twin": lambda prior=prior: slow_step(setting, x, y, prior)}, 2)  # type: ignore[misc]
        row = {"network": name, "past_tasks": past, "seconds": seconds, "ratio": seconds["fromp"] / seconds["plain"]}
        row["ratio_two_tasks"] = seconds["two tasks a step"] / seconds["plain"]
        if "slow twin" in seconds:
            row["slow_twin_ratio"] = seconds["slow twin"] / seconds["fromp"]
        yield row


def method_costs(repetitions: int) -> dict[str, Any]:
    """A step of every method on the MLP, with five past tasks, against one of `finetune`."""
    setting = SETTINGS["mlp"]()
    past, size = 5, 1000
    tasks = [TensorExamples(setting.images(size), setting.labels(size)) for _ in range(past + 1)]
    batch: list[HeadBatch] = [(setting.images(setting.batch_size), setting.labels(setting.batch_size), None)]
    cases: dict[str, Callable[[], object]] = {}
    for name in METHODS:
        plan = Plan.of("permuted-mnist", name)
        first = torch.arange(plan.memory), torch.zeros(plan.memory)  # a step costs the same with any points
        method = build_method(plan, deepcopy(setting.model), 0, kept=lambda task, first=first: first)  # type: ignore[misc]
        for task, examples in enumerate(tasks):
            method.begin_task(examples, None, [(one, None) for one in tasks[:task]])
            if task < past:
                method.end_task(examples)
        cases[name] = partial(method_step, method, torch.optim.Adam(method.parameters(), 1e-6, fused=True), batch)
    seconds = interleaved(cases, repetitions)
    ratios = {name: value / seconds[FINETUNE.name] for name, value in seconds.items()}
    return {"past_tasks": past, "points": POINTS, "seconds": seconds, "ratio": ratios}


def plain_step(setting: Case, chunks: list[tuple[Tensor, Tensor]]) -> None:
    setting.model.train()
    setting.optimizer.zero_grad()
    total = sum(len(y) for _, y in chunks)
    for x, y in chunks:
        (F.cross_entropy(setting.model(x), y) * (len(y) / total)).backward()
    setting.optimizer.step()


def fromp_step(setting: Case, x: Tensor, y: Tensor, prior: FunctionalPrior, tasks: Tensor | None) -> None:
    setting.model.train()
    setting.optimizer.zero_grad()
    loss = F.cross_entropy(setting.model(x), y) + 0.5 * prior.squared_distance(setting.model, tasks)
    loss.backward()
    setting.optimizer.step()


def one_graph_step(setting: Case, x: Tensor, y: Tensor, prior: FunctionalPrior) -> None:
    """The same with the graphs of all blocks at once, as plain autograd would have it."""
    setting.optimizer.zero_grad()
    loss = F.cross_entropy(setting.model.train()(x), y)
    with evaluating(setting.model):
        shares = [block.squared_distance(setting.model, prior.likelihood, ALONE) for block in prior.blocks]
    (loss + 0.5 * torch.stack(shares).sum()).backward()
    setting.optimizer.step()


def method_step(method: Method, optimizer: torch.optim.Optimizer, batch: list[HeadBatch]) -> None:
    method.model.train()
    optimizer.zero_grad()
    loss = method.loss(batch)
    (loss.data + loss.penalty).backward()
    optimizer.step()
    method.after_step()


def slow_step(setting: Case, x: Tensor, y: Tensor, prior: FunctionalPrior) -> None:
    """g_FR of Algorithm 1 to the letter: the M x P matrix H for every task and class, then H K^-1 (m - m0)."""
    model = setting.model
    setting.optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    weights = {name: w.detach() for name, w in model.named_parameters()}
    model.eval()

    def mean(weights: dict[str, Tensor], x: Tensor, c: int) -> Tensor:
        return functional_call(model, weights, (x[None],))[0].softmax(-1)[c]

    for anchor in prior.anchors:
        points = anchor.memory.inputs
        assert isinstance(points, Tensor)
        assert isinstance(anchor.kernel, FullKernel)
        for c in range(CLASSES):
            h = vmap(grad(lambda w, x, c=c: mean(w, x, c)), in_dims=(None, 0))(weights, points)
            with torch.no_grad():
                d = model(points).softmax(-1)[:, c] - anchor.mean[c]
                u = anchor.kernel.inverse[0, c] @ d
            for name, w in model.named_parameters():
                assert w.grad is not None
                w.grad += torch.einsum("iw,i->w", h[name].flatten(1), u).view_as(w)
    setting.optimizer.step()
