"""`fromp detect` says what detectors find on streams whose boundaries are known."""

import json
import sys

import pytest

from fromp.foundation.errors import FrompError
from fromp.lab.bench import detectors
from fromp.lab.cli import main
from fromp.lab.report.figures import statistic


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setitem(
        detectors.TRIALS, "small", detectors.Trial("two permutations", detectors._permuted, (0, 1), 150)
    )


@pytest.mark.parametrize(("detector", "latest"), [("calibrated", 0), ("divergence", 40)])
def test_a_change_is_found_where_it_is(detector, latest):
    found = detectors.run("small", detector, dataset="digits")
    assert found["true"] == [150]
    assert (found["misses"], found["false_alarms"]) == (0, 0)
    assert 0 <= found["shifts"][0] <= latest
    assert found["cost"] > 0
    assert found["first_task_cost"] > 0
    assert found["sample_cost"] > 0


def test_a_stream_that_stays_the_same_raises_no_alarm(monkeypatch):
    monkeypatch.setitem(detectors.TRIALS, "still", detectors.Trial("one task", detectors._permuted, (0,), 1000))
    found = detectors.run("still", "calibrated", dataset="digits")
    assert (found["minibatches"], found["false_alarms"]) == (1000, 0)


@pytest.mark.parametrize("detector", detectors.DETECTORS)
def test_every_detector_runs(detector):
    found = detectors.run("small", detector, dataset="digits", share=0.2)
    assert found["minibatches"] == 60


def test_a_detector_that_announces_everything_is_stopped(monkeypatch):
    monkeypatch.setattr(detectors, "MOST_ALARMS", 2)
    monkeypatch.setitem(detectors.DETECTORS, "always", lambda regulariser: detectors.Welch(1e-9))
    found = detectors.run("small", "always", dataset="digits", share=0.5)
    assert len(found["found"]) == 2
    assert found["minibatches"] < 150


def test_what_is_there_is_not_run_again(tmp_path, monkeypatch, capsys):
    for _ in range(2):
        detectors.main(tmp_path, ["small"], ["welch"], seeds=2, dataset="digits", share=0.2)
        monkeypatch.setattr(detectors, "run", None)
    report = json.loads((tmp_path / "small.json").read_text())
    assert [run["seed"] for run in report["runs"]] == [0, 1]
    assert (
        capsys.readouterr().out.splitlines()[-1].startswith("| two permutations, digits, 20 % of each task | `welch` |")
    )


def test_quick_runs_have_a_row_of_their_own(tmp_path, capsys):
    for share in (0.2, 0.3):
        detectors.main(tmp_path, ["small"], ["welch"], seeds=1, dataset="digits", share=share)
    rows = capsys.readouterr().out.splitlines()[-2:]
    assert [row.split("|")[1].strip() for row in rows] == [
        "two permutations, digits, 20 % of each task",
        "two permutations, digits, 30 % of each task",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--streams", "small, rotate"], "did you mean 'rotated'?"),
        (["--streams", "small", "--detectors", "calibrated, wlech"], "did you mean 'welch'?"),
        (["--streams", "rotate"], "did you mean 'rotated'?"),
        (["--streams", "split", "--detectors", "wlech"], "did you mean 'welch'?"),
    ],
)
def test_wrong_arguments(arguments, message, tmp_path, capsys):
    assert main(["detect", *arguments, "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_a_river_detector_cannot_be_saved():
    with pytest.raises(FrompError, match="cannot be saved"):
        detectors.DETECTORS["adwin"](None).state_dict()


def test_river_is_optional(monkeypatch):
    monkeypatch.setitem(sys.modules, "river", None)
    with pytest.raises(FrompError, match=r"river is not installed; pip install 'fromp\[drift\]'"):
        detectors.DETECTORS["adwin"](None)


def test_the_figure_marks_what_was_found():
    import numpy as np

    figure = statistic.boundaries(np.sin(np.arange(500.0)), "a statistic", [200, 400], [200])
    (axes,) = figure.axes
    assert [line.get_xdata()[0] for line in axes.lines[1:]] == [200, 400]
    assert axes.collections[-1].get_offsets().tolist() == [[200.0, np.sin(200.0)]]


def test_the_help_names_every_stream_and_detector(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")  # in narrower ones words may be broken
    assert main(["detect", "--help"]) == 0
    said = capsys.readouterr().out
    assert [name for name in (*detectors.TRIALS, *detectors.DETECTORS) if name not in said] == ["small"]
