"""A run that can be stopped and taken up again at any step."""

import dataclasses
import itertools
import os
import shutil
from types import SimpleNamespace

import pytest
import torch
from oracles.runs import PLAN, plan
from reliability.damage import damaged
from torch import nn

from fromp.foundation import storage
from fromp.foundation.errors import CheckpointError, FrompError
from fromp.foundation.state import flatten
from fromp.lab.benchmarks.catalogue import BENCHMARKS
from fromp.lab.benchmarks.streams import Split
from fromp.lab.data.arrays import Arrays
from fromp.lab.engine.fit import Fit
from fromp.lab.engine.run import Run
from fromp.lab.methods import METHODS
from fromp.lab.results.plan import Plan


class Died(BaseException):
    pass


@pytest.mark.parametrize("method", METHODS)
def test_dying_at_each_write_step(tmp_path, monkeypatch, method):
    """Every call that puts a file in place is, once, the last thing the process does."""
    toy = BENCHMARKS["toy"]
    short = dataclasses.replace(toy, training=dataclasses.replace(toy.training, epochs=1))
    monkeypatch.setitem(BENCHMARKS, "toy", short)  # for a method that runs another one inside
    of = plan(method, batch_size=1500)  # three steps per task, each saved
    whole = Run(of, BENCHMARKS["toy"], 0, tmp_path / "whole")
    whole.complete(checkpoint_seconds=0)
    expected = flatten(storage.read(tmp_path / "whole" / "checkpoint", "run"))[0]
    real, writes, limit = os.replace, 0, 0
    load, within = Fit.load_state_dict, []  # whether it was taken up before the last step of a task
    monkeypatch.setattr(
        Fit, "load_state_dict", lambda fit, state: (within.append(state["step"] < fit.num_steps), load(fit, state))
    )

    def replace(*arguments):
        nonlocal writes
        writes += 1
        if writes == limit:
            raise Died
        real(*arguments)

    monkeypatch.setattr(storage.os, "replace", replace)
    path = tmp_path / "dying"
    finished = False
    while not finished:
        limit, writes = limit + 1, 0
        try:
            run = Run(of, BENCHMARKS["toy"], 0, path)
            run.complete(checkpoint_seconds=0)
            finished = True
        except Died:
            pass
    assert limit > 6
    assert any(within)
    for name in ("rows", "steps", "threads", "norms"):
        assert getattr(run, name) == getattr(whole, name)
    got = flatten(storage.read(path / "checkpoint", "run"))[0]
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[name], expected[name]) for name in expected)


def test_a_memorable_coreset_is_the_memory_of_a_run_of_fromp(tmp_path):
    """Of the same seed, data and number of points, at FROMP's own settings, learned first and once."""
    changes = {"tasks": 2, "memory": 6, "validation": 0.2}
    fromp = Run(Plan.of("toy", "fromp", **changes), BENCHMARKS["toy"], 3, tmp_path / "fromp")
    fromp.complete()
    of = Plan.of("toy", "vcl-memorable", **changes, epochs=1, coreset_epochs=1)
    run = Run(of, BENCHMARKS["toy"], 3, tmp_path / "vcl")
    found = run.complete()
    for memory, expected in zip(run.method.memories, fromp.method.memories, strict=True):
        assert torch.equal(memory.indices, expected.indices)
        assert torch.equal(memory.inputs, expected.inputs)
        assert torch.equal(memory.scores, expected.scores)
    learned = tmp_path / "vcl" / "fromp" / "checkpoint" / "manifest.json"
    written = learned.stat().st_mtime_ns
    shutil.rmtree(tmp_path / "vcl" / "checkpoint")
    again = Run(of, BENCHMARKS["toy"], 3, tmp_path / "vcl")
    assert again.complete().accuracy == found.accuracy
    assert learned.stat().st_mtime_ns == written
    assert all(took > before for took, before in zip(found.task_seconds, again._before.seconds, strict=True))


def test_points_that_a_snapshot_does_not_hold_cannot_be_handed_on(tmp_path):
    run = Run(plan("finetune"), BENCHMARKS["toy"], 0, tmp_path)
    run.complete()
    with pytest.raises(FrompError, match=r"tasks/1 holds no examples that finetune kept"):
        run.kept(0)


def test_a_convolutional_network_goes_on_to_the_bit(tmp_path):
    """Its weights lie in memory channels last, and so must the optimiser's moments when they are read again."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (64, 3, 8, 8), generator=generator, dtype=torch.uint8)
    images = Arrays(pixels[:48], torch.arange(48) % 4, pixels[48:], torch.arange(16) % 4, ())

    class Network:
        def build(self, stream):
            model = nn.Sequential(
                nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Dropout(0.2), nn.Linear(128, 4)
            )
            return model.to(memory_format=torch.channels_last)

    of = dataclasses.replace(plan("fromp", epochs=3, batch_size=8), network=Network())
    benchmark = dataclasses.replace(BENCHMARKS["toy"], stream=lambda seed: Split(images, [[0, 1], [2, 3]]))
    whole = Run(of, benchmark, 0, tmp_path / "whole")
    whole.complete()

    for progress in Run(of, benchmark, 0, tmp_path / "stopped").learn(checkpoint_seconds=0):
        if (progress.task, progress.step) == (1, 5):
            break
    state = storage.read(tmp_path / "stopped" / "checkpoint", "run")
    assert (state["task"], state["fit"]["step"]) == (1, 5)
    again = Run(of, benchmark, 0, tmp_path / "stopped")
    again.complete()
    for a, b in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_joint_trains_once_at_the_last_task_and_has_no_transfer(tmp_path):
    run = Run(plan("joint", clip_norm=100.0), BENCHMARKS["toy"], 0, tmp_path)
    found = run.complete()
    first, last = found.accuracy
    assert first is None
    assert last is not None
    assert len(last) == 2
    assert found.backward_transfer is found.forgetting is None
    assert run.steps[0] == 0 < run.steps[1]
    assert [norm is None for norm in run.norms] == [True, False]  # no step, no norm


def test_joint_goes_on_after_a_task_that_is_not_trained(tmp_path):
    whole = Run(plan("joint"), BENCHMARKS["toy"], 0, tmp_path / "whole")
    whole.complete()
    for progress in Run(plan("joint"), BENCHMARKS["toy"], 0, tmp_path / "stopped").learn(checkpoint_seconds=0):
        if progress.step == 5:
            break
    again = Run(plan("joint"), BENCHMARKS["toy"], 0, tmp_path / "stopped")
    assert again.complete().accuracy == whole.result().accuracy
    for a, b in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_run_says_how_long_all_of_it_took_and_where(tmp_path, monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr("fromp.lab.engine.run.time", SimpleNamespace(monotonic=lambda: next(clock)))
    run = Run(PLAN, BENCHMARKS["toy"], 0, tmp_path)
    begin = run.method.begin_task
    run.method.begin_task = lambda *task: (list(itertools.islice(clock, 1000)), begin(*task))[1]
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = run.complete()
    finally:
        torch.set_num_threads(threads)
    assert min(found.task_seconds) > 1000
    assert found.environment["torch"] == torch.__version__
    assert found.task_threads == [1, 1]  # a small network's, whatever there is


@pytest.mark.parametrize(
    "method", ["fromp", "ewc", "si", "der++", "functional-l2", "vcl", "vcl-coreset", "frcl-random", "separate"]
)
def test_a_damaged_checkpoint_is_refused_or_harmless(tmp_path, method):
    """With hashes that fit: our error, or a run that ends; never another error, nor the end of the interpreter."""
    few = {"coreset_epochs": 1} if method == "vcl-coreset" else {}
    plan = Plan.of("toy", method, tasks=2, epochs=1, batch_size=1500, **few)
    for progress in Run(plan, BENCHMARKS["toy"], 0, tmp_path).learn(checkpoint_seconds=0):
        if (progress.task, progress.step) == (1, 2):
            break
    state, refused, wrong = storage.read(tmp_path / "checkpoint", "run"), 0, []
    for number in range(60):
        broken, what = damaged(state, number)
        if broken is None:
            continue
        shutil.rmtree(tmp_path / "checkpoint")
        try:
            storage.write(tmp_path / "checkpoint", "run", broken)
            Run(plan, BENCHMARKS["toy"], 0, tmp_path).complete()
        except FrompError:
            refused += 1
        except Exception as error:
            wrong.append(f"{what}: {type(error).__name__} {error}")
    assert not wrong, "\n".join(wrong)
    assert refused > 15


def test_rows_of_accuracies_and_weights_are_checked(tmp_path):
    for progress in Run(PLAN, BENCHMARKS["toy"], 0, tmp_path).learn(checkpoint_seconds=0):
        if progress.task == 1:
            break
    state = storage.read(tmp_path / "checkpoint", "run")
    weight = next(iter(state["model"]))
    nan = {**state["model"], weight: torch.full_like(state["model"][weight], torch.nan)}
    for changed in ({"rows": [[0.5, 0.5]]}, {"rows": [["a"]]}, {"rows": [[7.0]]}, {"model": nan}, {"model": {}}):
        shutil.rmtree(tmp_path / "checkpoint")
        storage.write(tmp_path / "checkpoint", "run", {**state, **changed})
        with pytest.raises(CheckpointError):
            Run(PLAN, BENCHMARKS["toy"], 0, tmp_path).complete()


def test_points_that_were_kept_are_checked(tmp_path):
    run = Run(PLAN, BENCHMARKS["toy"], 0, tmp_path)
    run.complete()
    state = storage.read(tmp_path / "tasks" / "1", "task")
    assert len(run.kept(0)[0]) == PLAN.memory
    for indices in (torch.tensor([0, 10**6]), torch.tensor([-1]), torch.tensor([3, 3]), torch.tensor([0.5])):
        memory = {**state["memory"], "indices": indices, "scores": torch.ones(len(indices))}
        storage.write(tmp_path / "tasks" / "1", "task", {**state, "memory": memory})
        with pytest.raises(CheckpointError):
            run.kept(0)


def test_a_checkpoint_of_other_settings_is_refused(tmp_path):
    Run(PLAN, BENCHMARKS["toy"], 0, tmp_path).complete()
    other = Plan.of("toy", "frorp", tasks=2, epochs=3)
    with pytest.raises(CheckpointError, match="different settings"):
        Run(other, BENCHMARKS["toy"], 0, tmp_path).complete()


def test_what_a_method_notes_on_its_way_is_its_own(tmp_path):
    """SI's path leads through the first task: it neither takes nor leaves one."""
    Run(plan("finetune"), BENCHMARKS["toy"], 0, tmp_path / "giver", tmp_path / "first").complete()
    taker = Run(plan("si"), BENCHMARKS["toy"], 0, tmp_path / "taker", tmp_path / "first")
    assert not next(taker.learn()).finished
