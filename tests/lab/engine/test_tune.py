"""Settings tried on held-out data."""

import dataclasses
import json
import math
import shutil

from oracles.runs import SHORT

from fromp.lab.cli import main
from fromp.lab.engine import watch
from fromp.lab.results import selection


def test_tuning_tries_every_combination_on_held_out_data_and_goes_on(tmp_path, capsys):
    arguments = ["tune", *SHORT, "--grid", "tau=0.1,10", "--grid", "lr=0.01,0.0001", "--out", str(tmp_path)]
    assert main(arguments) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("tau-")]
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


def test_tuning_goes_on_when_a_candidate_fails(tmp_path, capsys):
    arguments = ["tune", "toy", "--tasks", "1", "--epochs", "1", "--grid", "memory=1,10", "--out", str(tmp_path)]
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert "1/2  failed: memory_size=1 is smaller than" in said.err
    assert "memory-1," in said.err
    assert next(line for line in said.out.splitlines() if line.startswith("memory-")).startswith("memory-10 ")


def test_a_long_run_among_many_says_where_it_stands(tmp_path, capsys, monkeypatch):
    arguments = ["tune", "toy", "--tasks", "2", "--epochs", "2", "--grid", "tau=0.1,10", "--out"]
    monkeypatch.setattr(watch, "EVERY_SECONDS", math.inf)
    assert main([*arguments, str(tmp_path / "short")]) == 0
    assert "epoch" not in capsys.readouterr().out
    monkeypatch.setattr(watch, "EVERY_SECONDS", 0.0)
    assert main([*arguments, str(tmp_path / "quiet"), "--quiet"]) == 0
    assert "epoch" not in capsys.readouterr().out
    assert main([*arguments, str(tmp_path / "long")]) == 0
    told = [line.split("  loss")[0].strip() for line in capsys.readouterr().out.splitlines() if "epoch" in line]
    assert told[0] == "1/2  task 1/2  epoch 1/2"
    assert told[-1].startswith("2/2  task 2/2  epoch 2/2")
