"""Runs from the command line: resumed, killed, interrupted, several at once."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import FileLock
from oracles.runs import SHORT, accuracy

from fromp.foundation import storage
from fromp.foundation.errors import FrompError
from fromp.lab.cli import main
from fromp.lab.engine.jobs import Execution


def digest(out, seed=0):
    """The SHA-256 of everything a finished run ends with: weights, memory, prior and random states."""
    manifest = json.loads((Path(out) / "seeds" / str(seed) / "checkpoint" / "manifest.json").read_text())
    return manifest["files"]["tensors"]["sha256"]


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


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
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

    with FileLock(tmp_path / ".lock"):
        done = subprocess.run(command(tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "another process is working in" in done.stderr


def test_comparing_gives_forward_transfer(tmp_path):
    arguments = ["compare", "toy", "--methods", "finetune,separate", "--tasks", "2", "--epochs", "1", "--quiet"]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    rows = {m: json.loads((tmp_path / m / "results.json").read_text())["runs"][0] for m in ("finetune", "separate")}
    alone = rows["separate"]["accuracy"][-1]
    assert rows["finetune"]["forward_transfer"] == pytest.approx(rows["finetune"]["accuracy"][1][1] - alone[1])
    assert rows["separate"]["forward_transfer"] == 0
    assert len((tmp_path / "finetune" / "accuracy.csv").read_text().splitlines()) == 1 + 3


def test_what_is_not_installed_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert main(["run", "split-digits", "--out", str(tmp_path)]) == 2
    assert (
        "digits needs scikit-learn; pip install 'fromp[lab]', or in a clone pip install '.[lab]'"
        in capsys.readouterr().err
    )


def test_a_strength_that_nobody_chose_is_said_to_be_one(tmp_path, capsys):
    short = ["--tasks", "1", "--epochs", "1", "--out", str(tmp_path)]
    assert main(["run", "toy-overlapping", "--method", "ewc", *short]) == 0
    assert "the strength of ewc is untuned on toy-overlapping (using 1)" in capsys.readouterr().err
    assert main(["run", "toy-overlapping", "--method", "ewc", "--set", "strength=1", *short]) == 0
    assert capsys.readouterr().err == ""
    assert main(["run", "toy", "--method", "ewc", *short[:-1], str(tmp_path / "chosen")]) == 0
    assert capsys.readouterr().err == ""
