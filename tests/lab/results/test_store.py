"""results.json: the contract's keys on disk, typed in memory; what is damaged or foreign is refused by name."""

import json

import pytest
import torch
from reliability.damage import damaged

from fromp.foundation import storage
from fromp.foundation.errors import CheckpointError, FrompError
from fromp.lab import cli
from fromp.lab.results import store
from fromp.lab.results.plan import Plan
from fromp.lab.results.record import Experiment, SeedResult, seed_folder
from fromp.memory import Memory

PLAN = Plan.of("toy", "finetune", tasks=2)
RESULT = SeedResult(3, [[0.9], [0.5, 0.7]], 2.5, 2, task_seconds=[1.0, 1.5], task_steps=[10, 10])


def change(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_the_keys_on_disk_are_those_of_the_contract(tmp_path):
    store.record(tmp_path, PLAN, RESULT)
    found = json.loads((tmp_path / "results.json").read_text())
    assert list(found) == ["benchmark", "method", "settings", "environment", "runs", "summary"]
    assert found["runs"] == [
        {
            "seed": 3, "accuracy": [[0.9], [0.5, 0.7]], "average_accuracy": 0.6, "backward_transfer": -0.4,
            "forward_transfer": None, "forgetting": 0.4, "seconds": 2.5, "tasks": 2, "task_seconds": [1.0, 1.5],
            "task_steps": [10, 10],
        }
    ]  # fmt: skip
    assert list(found["summary"]) == ["average_accuracy", "backward_transfer", "forgetting", "seconds"]
    assert found["summary"]["average_accuracy"] == {"mean": 0.6, "std": 0.0, "stderr": 0.0, "n": 1}
    assert (tmp_path / "accuracy.csv").read_text() == "seed,after_task,task,accuracy\n3,1,1,0.9\n3,2,1,0.5\n3,2,2,0.7\n"
    experiment = store.read(tmp_path)
    assert experiment.recorded == [RESULT]
    assert PLAN.differences(experiment.plan) == []


def test_summaries_are_computed_never_read_back(tmp_path):
    store.record(tmp_path, PLAN, RESULT)
    runs = json.loads((tmp_path / "results.json").read_text())["runs"]
    runs[0] |= {"average_accuracy": 0.99, "forgetting": None}
    change(tmp_path / "results.json", runs=runs, summary={"average_accuracy": {"mean": 0.99}})
    found = store.read(tmp_path)
    assert found.summary("average_accuracy").mean == 0.6
    assert found.summary("forgetting").mean == 0.4


def test_what_a_newer_version_records_is_kept_when_the_file_is_rewritten(tmp_path):
    store.record(tmp_path, PLAN, RESULT)
    change(seed_folder(tmp_path, 3) / "run.json", energy=4.2)
    store.record(tmp_path, PLAN, SeedResult(0, [[0.5]], 1.0, 2))
    runs = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert [run.get("energy") for run in runs] == [None, 4.2]


def test_seeds_that_only_results_json_has_are_not_lost(tmp_path):
    store.record(tmp_path, PLAN, RESULT)
    (seed_folder(tmp_path, 3) / "run.json").unlink()
    store.unfold(tmp_path)
    store.record(tmp_path, PLAN, SeedResult(10, [[0.5]], 1.0, 2))
    assert [seed.seed for seed in store.read(tmp_path).recorded] == [3, 10]
    assert [seed.seed for seed in store.read(tmp_path).finished] == [3]


def test_only_the_last_task_of_joint_was_trained_in_older_files_that_say_so(tmp_path):
    store.record(tmp_path, PLAN, RESULT)
    settings = json.loads((tmp_path / "results.json").read_text())["settings"]
    change(tmp_path / "results.json", method="joint", settings={**settings, "joint_from": 2})
    found = store.read(tmp_path)
    assert found.recorded[0].accuracy == [None, [0.5, 0.7]]
    assert found.summary("average_accuracy").mean == 0.6
    assert found.summary("backward_transfer") is None


RUN = {"seed": 0, "accuracy": [[0.5]], "seconds": 1.0}
FOREIGN = {
    "not JSON": "{",
    "not UTF-8": b"\xff\xfe",
    "a list": "[]",
    "a number": "3",
    "deeply nested": "[" * 100_000,
    "no runs": {"runs": None},
    "runs of text": {"runs": ["x"]},
    "no seed": {"runs": [{"accuracy": [], "seconds": 0}]},
    "a seed in words": {"runs": [{**RUN, "seed": "first"}]},
    "an accuracy above one": {"runs": [{**RUN, "accuracy": [[95.0]]}]},
    "an accuracy that is none": {"runs": [{**RUN, "accuracy": [[float("nan")]]}]},
    "a square matrix": {"runs": [{**RUN, "accuracy": [[0.5, 0.5], [0.5, 0.5]]}]},
    "a matrix of another form": {"runs": [{**RUN, "accuracy": {"task 1": 0.5}}]},
    "settings of another form": {"settings": ["lr"]},
    "a method of another form": {"method": {"name": "fromp"}},
}


def spoil(path, content):
    if isinstance(content, dict):
        change(path, **content)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_a_damaged_or_foreign_results_json_is_refused_by_name(tmp_path, content, capsys):
    store.record(tmp_path, PLAN, RESULT)
    spoil(tmp_path / "results.json", content)
    for reader in (store.read, store.find, store.unfold):
        with pytest.raises(CheckpointError, match=r"results\.json is damaged, or not of a form that this"):
            reader(tmp_path)
    assert cli.main(["report", str(tmp_path)]) == 2
    assert str(tmp_path / "results.json") in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "[]", b"\xff", {"accuracy": 1}, {"seed": None}])
def test_a_damaged_run_json_is_refused_by_name_before_anything_is_written(tmp_path, content):
    store.record(tmp_path, PLAN, RESULT)
    before = (tmp_path / "results.json").read_bytes()
    spoil(seed_folder(tmp_path, 3) / "run.json", content)
    with pytest.raises(CheckpointError, match=r"3/run\.json is damaged"):
        store.read_seed(tmp_path, 3)
    with pytest.raises(CheckpointError, match=r"3/run\.json is damaged"):
        store.record(tmp_path, PLAN, SeedResult(0, [[0.5]], 1.0, 2))
    assert (tmp_path / "results.json").read_bytes() == before


def test_a_folder_without_results_is_an_error(tmp_path):
    for reader in (store.read, store.find):
        with pytest.raises(CheckpointError, match=r"holds no results\.json"):
            reader(tmp_path)


def test_damaged_snapshots_and_traces_are_refused_or_harmless(tmp_path):
    """With hashes that fit: our error, or what the report can draw."""
    memory = Memory(torch.ones(3, 2), torch.zeros(3).long(), torch.ones(3), None, torch.arange(3))
    snapshot = {"accuracy": [1.0], "weights": {"w": torch.ones(2)}, "memory": memory.state_dict(), "pictures": None}
    trace = {"values": torch.ones(4, 2), "names": ["a", "b"], "true": [2], "found": [[2, 3]]}
    one = Experiment(tmp_path, "toy", "fromp", {}, {}, [])
    refused = 0
    for kind, folder, state, look in (
        ("task", "tasks/1", snapshot, lambda: one.snapshots(0)), ("trace", "trace", trace, lambda: one.trace(0))
    ):  # fmt: skip
        for number in range(80):
            broken, _ = damaged(state, number)
            if broken is None:
                continue
            storage.write(tmp_path / "seeds" / "0" / folder, kind, broken)
            try:
                look()
            except FrompError:
                refused += 1
    assert refused > 40
