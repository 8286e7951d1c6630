"""Settings that were tried, in one file per benchmark."""

import json

import migrate_results
import pytest

from fromp.foundation.errors import CheckpointError
from fromp.lab.results import selection


def write_results(folder, method, settings, last_rows, tasks=2):
    runs = [
        {
            "seed": seed, "accuracy": [[0.9], row][2 - len(row) :], "average_accuracy": sum(row) / len(row),
            "backward_transfer": row[0] - 0.9, "forgetting": 0.9 - row[0], "seconds": 21.04, "tasks": tasks,
        }
        for seed, row in enumerate(last_rows)
    ]  # fmt: skip
    found = {"benchmark": "toy", "method": method, "settings": settings, "environment": {}, "runs": runs}
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps({**found, "summary": {}}))
    (folder / "accuracy.csv").write_text("seed,after_task,task,accuracy\n")


@pytest.fixture
def results(tmp_path):
    """Two grids of tried settings, and a result that is reported."""
    tried = tmp_path / "toy" / "selection"
    write_results(tried / "ewc" / "strength-1", "ewc", {"epochs": 5, "strength": 1.0}, [[0.5, 0.7], [0.6, 0.7]])
    write_results(tried / "ewc" / "strength-10", "ewc", {"epochs": 5, "strength": 10.0, "new": None}, [[0.6, 0.8]])
    write_results(tried / "tau-1", "fromp", {"epochs": 5, "tau": 1.0}, [[0.8, 0.9]])
    write_results(tmp_path / "toy" / "fromp", "fromp", {"epochs": 5, "tau": 0.1}, [[0.8, 1.0]])
    return tmp_path


def test_folding_keeps_settings_and_accuracies_and_reported_results(results):
    tried = results / "toy" / "selection"
    kept = {path.parent.relative_to(tried).as_posix(): json.loads(path.read_text()) for path in tried.rglob("*.json")}
    reported = (results / "toy" / "fromp" / "results.json").read_bytes()
    assert migrate_results.migrate(results) == {"toy": 3}
    found = {one.name: one for one in selection.read(results / "toy" / "selection.json")}
    assert list(found) == ["ewc/strength-1", "ewc/strength-10", "tau-1"]
    for name, one in found.items():
        assert one.settings == kept[name]["settings"]
        runs = kept[name]["runs"]
        assert [seed.average_accuracy for seed in one.finished] == [run["average_accuracy"] for run in runs]
        assert [seed.seed for seed in one.finished] == [run["seed"] for run in runs]
    rows = json.loads((results / "toy" / "selection.json").read_text())["candidates"]
    assert rows[0]["backward_transfer"] == pytest.approx([-0.4, -0.3])
    assert not tried.exists()
    assert (results / "toy" / "fromp" / "results.json").read_bytes() == reported
    assert not list(results.rglob("accuracy.csv"))


def test_common_settings_stand_once(results):
    selection.write(results, results / "toy" / "selection")
    written = json.loads((results / "selection.json").read_text())
    assert written["shared"] == {"ewc": {"epochs": 5}, "fromp": {"epochs": 5, "tau": 1.0}}
    assert [row["settings"] for row in written["candidates"]] == [
        {"strength": 1.0}, {"strength": 10.0, "new": None}, {},
    ]  # fmt: skip


def test_seeds_that_have_not_finished_are_left_out(results):
    write_results(results / "toy" / "selection" / "tau-3", "fromp", {"epochs": 5, "tau": 3.0}, [[0.9], [0.5, 0.7]])
    selection.write(results, results / "toy" / "selection")
    found = {one.name: one for one in selection.read(results / "selection.json")}
    assert [seed.seed for seed in found["tau-3"].seeds] == [1]


def test_nothing_is_folded_twice(results):
    migrate_results.migrate(results)
    with pytest.raises(CheckpointError, match="there is nothing to fold"):
        migrate_results.migrate(results)
    folder = results / "toy" / "selection" / "tau-3"
    write_results(folder, "fromp", {"epochs": 5, "tau": 3.0}, [[0.9, 0.9]])
    before = (results / "toy" / "selection.json").read_bytes()
    with pytest.raises(CheckpointError, match="folded before"):
        migrate_results.migrate(results)
    assert (folder / "results.json").exists()
    assert (results / "toy" / "selection.json").read_bytes() == before


def test_a_difference_stops_the_folding(results, monkeypatch):
    monkeypatch.setattr(selection, "_shared", lambda settings: settings[0])
    with pytest.raises(CheckpointError, match=r"strength-10: the settings of selection\.json differ"):
        migrate_results.migrate(results)
    assert len(list((results / "toy" / "selection").rglob("results.json"))) == 3
