"""Kernels that a task's end leaves as they were: which, how many, and that nothing else changes."""

import math

import pytest
import torch
from torch import nn

from fromp import FROMP, Categorical, at_every_end, gp, never, when_doubled
from fromp.foundation.errors import CheckpointError


def stream(reg, tasks, start=0):
    """Tasks of a few examples, the weights moved a little before each end."""
    for task in range(start, tasks):
        generator = torch.Generator().manual_seed(task)
        with torch.no_grad():
            for w in reg.model.parameters():
                w += 0.1 * torch.randn(w.shape, generator=generator, dtype=w.dtype)
        x = torch.randn(30, 5, generator=generator, dtype=torch.double)
        reg.end_task((x, torch.arange(30) % 3))
    return reg


def learner(refresh, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    return FROMP(model, Categorical(), memory_size=6, jitter=1e-2, refresh=refresh, **options)


def kernel_now(reg, task):
    """The inverse kernel of a past task at the present weights and precision, from its definition."""
    k = gp.kernel(reg.model, reg.memories[task].inputs, reg.likelihood, reg.variance(tuple(reg.precision)))
    return gp.inverse(k, reg.jitter)


def test_the_rules_say_when():
    due = {f: [[t for t in range(1, n + 1) if f(t, n)] for n in range(1, 9)] for f in (when_doubled, at_every_end)}
    assert due[when_doubled] == [[1], [1, 2], [3], [1, 2, 4], [5], [3, 6], [7], [1, 2, 4, 8]]
    assert due[at_every_end][4] == [1, 2, 3, 4, 5]
    for tasks in (10, 150, 1000):
        computed = sum(when_doubled(t, n) for n in range(1, tasks + 1) for t in range(1, n + 1))
        assert computed <= 2 * tasks
        last = [max(n for n in range(t, tasks + 1) if when_doubled(t, n)) for t in range(1, tasks + 1)]
        assert all(2 * n > tasks for n in last)  # of a sum that lacks less than half of its terms


def test_the_kernels_that_are_due_are_those_of_today_and_the_others_those_of_then():
    reg, tasks = learner(when_doubled), 6
    computed = {}
    for n in range(1, tasks + 1):
        stream(reg, n, n - 1)
        computed |= {task: kernel_now(reg, task) for task in range(n) if when_doubled(task + 1, n)}
        for task, anchor in enumerate(reg._anchors()):
            torch.testing.assert_close(anchor.kernel.inverse[0], computed[task], rtol=1e-8, atol=1e-8)
            now = reg.likelihood.mean(reg.model(anchor.memory.inputs)).T
            torch.testing.assert_close(anchor.mean, now)  # the means are always those of today
    assert reg.penalty().item() == pytest.approx(0, abs=1e-12)


def test_a_rule_of_ones_own_and_the_default():
    paper, same = stream(learner(at_every_end), 4), stream(learner(lambda task, tasks: True), 4)
    default = stream(FROMP(learner(None).model, Categorical(), memory_size=6, jitter=1e-2), 4)
    for one, other, third in zip(paper._anchors(), same._anchors(), default._anchors(), strict=True):
        assert torch.equal(one.kernel.inverse, other.kernel.inverse)
        assert torch.equal(one.kernel.inverse, third.kernel.inverse)


def test_one_kernel_per_end_if_none_is_computed_anew(monkeypatch):
    calls, inner = [], gp.kernels
    monkeypatch.setattr(gp, "kernels", lambda *arguments: calls.append(1) or inner(*arguments))
    reg = learner(never)
    for n in range(1, 6):
        stream(reg, n, n - 1)
        assert len(calls) == n


def test_a_memory_that_has_shrunk_gets_a_kernel_of_its_points():
    reg = stream(learner(never, total_memory=12), 4)
    assert [len(memory) for memory in reg.memories] == [3, 3, 3, 3]
    assert [anchor.kernel.inverse.shape[-1] for anchor in reg._anchors()] == [3, 3, 3, 3]


def test_it_is_saved_by_name(tmp_path):
    reg = stream(learner(when_doubled), 3)
    reg.save(tmp_path / "a")
    loaded = FROMP.load(tmp_path / "a", reg.model)
    assert loaded.refresh is when_doubled
    stream(reg, 4, 3)
    stream(loaded, 4, 3)  # of the same model, moved once more
    assert len(loaded.memories) == 4
    own = learner(lambda task, tasks: task > 1)
    own.save(tmp_path / "b")
    with pytest.raises(CheckpointError, match="refresh=\\.\\.\\."):
        FROMP.load(tmp_path / "b", own.model)
    assert FROMP.load(tmp_path / "b", own.model, refresh=never).refresh is never


def test_forgetting_a_task_keeps_the_kernels_of_the_others():
    reg = stream(learner(never), 4)
    before = [anchor.kernel.inverse.clone() for anchor in reg._anchors()]
    reg.forget(1)
    for anchor, kernel in zip(reg._anchors(), [before[0], *before[2:]], strict=True):
        assert torch.equal(anchor.kernel.inverse, kernel)
    assert math.isfinite(reg.penalty().item())
