"""A run can die at any moment, and the same command ends where it would have ended."""

import dataclasses
import itertools
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest
import torch
from filelock import FileLock
from oracles.damage import damaged
from torch import nn

from fromp.foundation import storage
from fromp.foundation.errors import CheckpointError, DerivativeError, FrompError
from fromp.foundation.state import flatten
from fromp.lab.benchmarks.catalogue import BENCHMARKS
from fromp.lab.benchmarks.streams import Split
from fromp.lab.cli import main
from fromp.lab.data.arrays import Arrays
from fromp.lab.engine import watch
from fromp.lab.engine.first_task import FirstTask
from fromp.lab.engine.fit import Fit
from fromp.lab.engine.jobs import Execution
from fromp.lab.engine.run import Run
from fromp.lab.engine.watch import boundaries_line
from fromp.lab.methods import METHODS
from fromp.lab.results import selection
from fromp.lab.results.plan import Plan, comparison

SHORT = ["toy", "--tasks", "3", "--epochs", "2", "--memory", "10", "--quiet"]
SETTINGS = {"tasks": 2, "epochs": 1, "memory": 6, "tasks_per_step": 1}
PLAN = Plan.of("toy", "frorp", **SETTINGS)


def plan(method, **changes):
    return comparison("toy", ["frorp", method], {**SETTINGS, **changes})[method]


def digest(out, seed=0):
    """The SHA-256 of everything a finished run ends with: weights, memory, prior and random states."""
    manifest = json.loads((Path(out) / "seeds" / str(seed) / "checkpoint" / "manifest.json").read_text())
    return manifest["files"]["tensors"]["sha256"]


def accuracy(out):
    return [run["accuracy"] for run in json.loads((Path(out) / "results.json").read_text())["runs"]]


def command(out, *more):
    return [
        sys.executable,
        "-m",
        "fromp",
        "run",
        *SHORT,
        "--checkpoint-seconds",
        "0.02",
        "--out",
        str(out),
        *more,
    ]


def test_killed_again_and_again(tmp_path):
    longer = ["--epochs", "10"]
    assert main(["run", *SHORT, *longer, "--out", str(tmp_path / "whole")]) == 0
    chance = random.Random(0)
    manifest = tmp_path / "killed" / "seeds" / "0" / "checkpoint" / "manifest.json"
    kills = 0
    while kills < 4:
        process = subprocess.Popen(command(tmp_path / "killed", *longer))
        before = manifest.stat().st_mtime_ns if manifest.exists() else 0
        while process.poll() is None and (not manifest.exists() or manifest.stat().st_mtime_ns == before):
            time.sleep(0.01)  # until it has gone on from where it was
        time.sleep(chance.uniform(0.0, 0.4))
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    assert kills >= 2
    subprocess.run(command(tmp_path / "killed", *longer), check=True)
    assert digest(tmp_path / "killed") == digest(tmp_path / "whole")
    assert accuracy(tmp_path / "killed") == accuracy(tmp_path / "whole")


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


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_says_so(tmp_path, number, code):
    process = subprocess.Popen(
        [*command(tmp_path), "--epochs", "200"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    checkpoint = tmp_path / "seeds" / "0" / "checkpoint" / "manifest.json"
    while not checkpoint.exists():
        time.sleep(0.05)
        assert process.poll() is None
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code
    assert "run the same command again" in said
    state = storage.read(checkpoint.parent, "run")
    assert state["fit"]["step"] > 0


def test_the_same_command_again_says_that_all_is_done(tmp_path, capsys):
    arguments = ["run", "toy", "--tasks", "1", "--epochs", "1", "--seeds", "2", "--out", str(tmp_path)]
    assert main(arguments) == 0
    before = digest(tmp_path)
    capsys.readouterr()
    assert main(arguments) == 0
    assert "2 already done" in capsys.readouterr().out
    assert digest(tmp_path) == before
    results = json.loads((tmp_path / "results.json").read_text())
    assert [run["seed"] for run in results["runs"]] == [0, 1]
    assert results["summary"]["average_accuracy"]["n"] == 2


def test_seeds_at_once_equal_seeds_in_turn(tmp_path):
    for jobs in ("1", "2"):
        arguments = ["run", "toy", "--tasks", "2", "--epochs", "1", "--seeds", "2", "--quiet"]
        assert main([*arguments, "--jobs", jobs, "--out", str(tmp_path / jobs)]) == 0
    assert [digest(tmp_path / "1", s) for s in (0, 1)] == [digest(tmp_path / "2", s) for s in (0, 1)]


def test_fewer_jobs_than_one_are_refused():
    with pytest.raises(FrompError, match=r"jobs must be at least 1 \(got 0\)"):
        Execution(jobs=0)


def test_another_run_in_the_same_folder_is_refused(tmp_path, capsys):
    arguments = ["run", "toy", "--tasks", "1", "--epochs", "1", "--quiet", "--out", str(tmp_path)]
    assert main(arguments) == 0
    assert main([*arguments, "--set", "lr=0.02"]) == 2
    assert "different lr; give another --out" in capsys.readouterr().err
    assert main([*arguments, "--method", "joint"]) == 2


def test_two_processes_in_one_folder_are_refused(tmp_path):
    from filelock import FileLock

    with FileLock(tmp_path / ".lock"):
        done = subprocess.run(command(tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "another process is working in" in done.stderr


@pytest.mark.parametrize("giver", ["finetune", "separate"])
def test_the_first_task_is_shared_and_changes_nothing(tmp_path, giver):
    alone = Run(plan("fromp"), BENCHMARKS["toy"], 0, tmp_path / "alone")
    alone.complete()
    Run(plan(giver), BENCHMARKS["toy"], 0, tmp_path / "a", tmp_path / "first").complete()
    steps = []
    shared = Run(plan("fromp"), BENCHMARKS["toy"], 0, tmp_path / "b", tmp_path / "first")
    steps += [(progress.task, progress.finished) for progress in shared.learn()]
    assert steps[0] == (1, True)  # the first task was not fitted again
    assert shared.rows == alone.rows
    for a, b in zip(alone.model.parameters(), shared.model.parameters(), strict=True):
        assert torch.equal(a, b)


def clipped(method, clip):
    return plan(method, clip_norm=clip)


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


def test_comparing_gives_forward_transfer(tmp_path):
    arguments = ["compare", "toy", "--methods", "finetune,separate", "--tasks", "2", "--epochs", "1", "--quiet"]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    rows = {m: json.loads((tmp_path / m / "results.json").read_text())["runs"][0] for m in ("finetune", "separate")}
    alone = rows["separate"]["accuracy"][-1]
    assert rows["finetune"]["forward_transfer"] == pytest.approx(rows["finetune"]["accuracy"][1][1] - alone[1])
    assert rows["separate"]["forward_transfer"] == 0
    assert len((tmp_path / "finetune" / "accuracy.csv").read_text().splitlines()) == 1 + 3


def test_tuning_tries_every_combination_on_held_out_data_and_goes_on(tmp_path, capsys):
    arguments = ["tune", *SHORT, "--grid", "tau=0.1,10", "--grid", "lr=0.01,0.0001", "--out", str(tmp_path)]
    assert main(arguments) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│ tau")]
    found = {path.parent.name: json.loads(path.read_text()) for path in tmp_path.glob("*/results.json")}
    assert set(found) == {f"tau-{tau}-lr-{lr}" for tau in ("0.1", "10") for lr in ("0.01", "0.0001")}
    assert all(one["settings"]["validation"] == 0.1 for one in found.values())
    tried = {one.name: one.summary("average_accuracy") for one in selection.read(tmp_path / "selection.json")}
    assert {name: dataclasses.asdict(accuracy) for name, accuracy in tried.items()} == {
        name: one["summary"]["average_accuracy"] for name, one in found.items()
    }
    best = sorted(found, key=lambda name: -found[name]["summary"]["average_accuracy"]["mean"])
    assert found[best[0]]["summary"]["average_accuracy"] != found[best[-1]]["summary"]["average_accuracy"]
    assert best[0] in lines[0]
    assert best[-1] in lines[-1]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/seeds/*/run.json")}
    assert main(arguments) == 0
    assert before == {path: path.stat().st_mtime_ns for path in before}  # nothing is learned again
    for seeds in tmp_path.glob("*/seeds"):
        shutil.rmtree(seeds)
    assert main(arguments) == 0  # as in a clone, which has the results alone
    assert not list(tmp_path.glob("*/seeds/*/checkpoint"))
    assert main([*arguments, "--epochs", "3"]) == 2
    assert "already holds a run with a different epochs" in capsys.readouterr().err


def test_a_first_task_that_another_run_leaves_meanwhile_is_not_written_over(tmp_path):
    run = Run(PLAN, BENCHMARKS["toy"], 0, tmp_path / "run")
    fit = Fit(run.method, [(run.stream.task(0).train, None)], PLAN.training, 0)
    first = FirstTask(tmp_path / "first", PLAN, 0)
    first.path.parent.mkdir()
    with FileLock(tmp_path / "first" / ".lock"):  # the other is at it
        leaving = Thread(target=first.save, args=(fit, 1.0))
        leaving.start()
        leaving.join(0.3)
        assert not first.path.exists()
        storage.write(first.path, "first task", {"seconds": 2.0})
    leaving.join()
    assert storage.read(first.path, "first task")["seconds"] == 2.0


def test_scalars_go_on_from_task_to_task_whatever_their_length(tmp_path, monkeypatch):
    steps = []

    class Writer:
        def __init__(self, path):
            assert Path(path) == tmp_path / "seeds" / "0" / "tensorboard"

        def add_scalar(self, name, value, step):
            if name == "loss":
                steps.append(step)

        def flush(self):
            pass

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))
    arguments = ["run", "split-digits", "--method", "finetune", "--tasks", "4", "--epochs", "1", "--tensorboard"]
    assert main([*arguments, "--set", "batch_size=1", "--quiet", "--out", str(tmp_path)]) == 0
    firsts = (0, 288, 576, 867)  # the third task has three examples more than the others
    assert steps == [first + step for first in firsts for step in range(50, 288, 50)]


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


@pytest.mark.parametrize("method", ["finetune", "si"])
def test_a_run_that_diverges_stops_and_leaves_no_first_task(tmp_path, method):
    run = Run(plan(method, lr=1e38), BENCHMARKS["toy"], 3, tmp_path / "run", tmp_path / "first")
    with pytest.raises(DerivativeError, match=r"seed 3 is (nan|inf) at step 200 of 200 of task 1; .* lr than 1e\+38"):
        run.complete()
    assert not (tmp_path / "first").exists()


def test_what_is_not_installed_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert main(["run", "split-digits", "--out", str(tmp_path)]) == 2
    assert (
        "digits needs scikit-learn; pip install 'fromp[lab]', or in a clone pip install '.[lab]'"
        in capsys.readouterr().err
    )


def test_the_script_that_kills_runs_can_be_started():
    assert (
        subprocess.run(
            [sys.executable, Path(__file__).parents[3] / "tools" / "kill_runs.py", "--help"], check=True
        ).returncode
        == 0
    )


def test_tuning_goes_on_when_a_candidate_fails(tmp_path, capsys):
    arguments = ["tune", "toy", "--tasks", "1", "--epochs", "1", "--grid", "memory=1,10", "--out", str(tmp_path)]
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert "1/2  failed: memory_size=1 is smaller than" in said.err
    assert "memory-1," in said.err
    assert next(line for line in said.out.splitlines() if "│ memory" in line).startswith("│ memory-10 ")


def test_a_long_run_among_many_says_where_it_stands(tmp_path, capsys, monkeypatch):
    arguments = ["tune", "toy", "--tasks", "2", "--epochs", "2", "--grid", "tau=0.1,10", "--out"]
    monkeypatch.setattr(watch, "EVERY_SECONDS", math.inf)
    assert main([*arguments, str(tmp_path / "short")]) == 0
    assert "task ends in" not in capsys.readouterr().out
    monkeypatch.setattr(watch, "EVERY_SECONDS", 0.0)
    assert main([*arguments, str(tmp_path / "quiet"), "--quiet"]) == 0
    assert "task ends in" not in capsys.readouterr().out
    assert main([*arguments, str(tmp_path / "long")]) == 0
    told = [line.split("  loss")[0].strip() for line in capsys.readouterr().out.splitlines() if "task ends in" in line]
    assert told[0] == "1/2  task 1/2  epoch 1/2"
    assert told[-1] == "2/2  task 2/2  epoch 2/2"


@pytest.mark.parametrize("method", ["fromp", "ewc", "si", "der++", "functional-l2"])
def test_a_damaged_checkpoint_is_refused_or_harmless(tmp_path, method):
    """With hashes that fit: our error, or a run that ends; never another error, nor the end of the interpreter."""
    plan = Plan.of("toy", method, tasks=2, epochs=1, batch_size=1500)
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


def test_a_checkpoint_of_other_settings_is_refused(tmp_path):
    Run(PLAN, BENCHMARKS["toy"], 0, tmp_path).complete()
    other = Plan.of("toy", "frorp", tasks=2, epochs=3)
    with pytest.raises(CheckpointError, match="different settings"):
        Run(other, BENCHMARKS["toy"], 0, tmp_path).complete()


def test_a_strength_that_nobody_chose_is_said_to_be_one(tmp_path, capsys):
    short = ["--tasks", "1", "--epochs", "1", "--out", str(tmp_path)]
    assert main(["run", "toy-overlapping", "--method", "ewc", *short]) == 0
    assert "the strength of ewc is untuned on toy-overlapping (using 1)" in capsys.readouterr().err
    assert main(["run", "toy-overlapping", "--method", "ewc", "--set", "strength=1", *short]) == 0
    assert capsys.readouterr().err == ""
    assert main(["run", "toy", "--method", "ewc", *short[:-1], str(tmp_path / "chosen")]) == 0
    assert capsys.readouterr().err == ""


def test_where_new_tasks_were_found_in_a_line():
    found = {"true": [], "found": [], "misses": 0, "false_alarms": 0}
    assert boundaries_line(found) == "no new task found; there was none"
    found = {"true": [10, 20], "found": [[10, 13], [15, 18]], "misses": 1, "false_alarms": 1}
    assert boundaries_line(found) == "new tasks found at minibatch 10, 15; they began at 10, 20 (1 missed, 1 false)"
    many = list(range(20))
    found = {"true": many, "found": [[k, k] for k in many], "misses": 0, "false_alarms": 0}
    assert boundaries_line(found).count("11, ...") == 2


def test_what_a_method_notes_on_its_way_is_its_own(tmp_path):
    """SI's path leads through the first task: it neither takes nor leaves one."""
    Run(plan("finetune"), BENCHMARKS["toy"], 0, tmp_path / "giver", tmp_path / "first").complete()
    taker = Run(plan("si"), BENCHMARKS["toy"], 0, tmp_path / "taker", tmp_path / "first")
    assert not next(taker.learn()).finished
