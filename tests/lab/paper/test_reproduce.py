"""Every table and figure of the paper: what it needs, how far it is, and that it is rendered from what is kept."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from oracles.browser import look, needs_browser
from PIL import Image
from rich.console import Console

from fromp.foundation import storage
from fromp.foundation.errors import FrompError
from fromp.lab import cli
from fromp.lab.engine.run import Run
from fromp.lab.paper import drawings, reproduce, tables
from fromp.lab.paper.exhibits import EXHIBITS, Drawing
from fromp.lab.paper.required import Required, ResultsFolder
from fromp.lab.report.figures import style
from fromp.lab.report.figures.plane import Boundary, toy_strip
from fromp.lab.results import metrics, store
from fromp.lab.results.format import Table
from fromp.lab.results.plan import Plan
from fromp.lab.results.record import seed_folder

TINY = Required("toy-less-data", "finetune", 2, {"epochs": 1, "tasks": 2}, "tiny")


def shown(runs):
    """A table of one run."""
    return Drawing("tiny", "nowhere", "tiny", lambda kept, of: tables.pivot(kept, of, "method", METRICS, []), (runs,))


METRICS = ("average_accuracy",)
QUICK = [runs for exhibit in EXHIBITS.values() for runs in exhibit.runs(quick=True)]


def made_up(runs, seed):
    """A finished run as it stands in results.json, with accuracies drawn at random."""
    draws = np.random.default_rng(seed)
    matrix = [list(0.9 + 0.1 * draws.random(task + 1)) for task in range(runs.plan.stream.tasks)]
    return {
        "seed": seed, "accuracy": matrix, "average_accuracy": metrics.average_accuracy(matrix),
        "backward_transfer": metrics.backward_transfer(matrix), "forward_transfer": None,
        "seconds": 3.0, "task_seconds": [1.0] * len(matrix), "tasks": len(matrix),
    }  # fmt: skip


def write(root, runs, seeds, seconds=3.0, **changes):
    path = root / runs.place
    path.mkdir(parents=True, exist_ok=True)
    all_runs = [{**made_up(runs, seed), "seconds": seconds} for seed in range(seeds)]
    found = {
        "benchmark": runs.benchmark, "method": runs.method, "settings": {**runs.plan.flat(), **changes},
        "environment": {}, "runs": all_runs, "summary": {},
    }  # fmt: skip
    (path / "results.json").write_text(json.dumps(found))


def write_snapshots(root, runs):
    """The snapshots of untrained networks, and a detector's trace if there is one."""
    for seed in range(runs.seeds):
        stream, model = runs.plan.make(seed)
        path = seed_folder(root / runs.place, seed)
        for task in range(len(stream)):
            state = {"accuracy": [1.0], "weights": model.state_dict(), "memory": None}
            storage.write(path / "tasks" / str(task + 1), "task", state)
        if runs.plan.flat()["boundaries"] != "given":
            values = torch.rand(90, 2, dtype=torch.double)
            names = ["squared difference", "Welch's t"]
            found = {"values": values, "names": names, "true": [30, 60], "found": [[30, 30]]}
            storage.write(path / "trace", "trace", found)


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """Everything that the quick version needs, made up."""
    out = tmp_path_factory.mktemp("made-up")
    seeds = {runs.place: runs.seeds for runs in sorted(QUICK, key=lambda runs: runs.seeds)}  # the most of each place
    for runs in QUICK:
        write(out, runs, seeds[runs.place])
        if runs.pictures:
            write_snapshots(out, replace(runs, seeds=seeds[runs.place]))
    return out


@pytest.mark.parametrize("name", EXHIBITS)
def test_each_is_done_and_renders(root, name):
    exhibit, kept = EXHIBITS[name], ResultsFolder(root)
    shown = exhibit.render(kept, exhibit.runs(quick=True))
    assert isinstance(shown, Table if name.startswith("table-") else Figure)
    if isinstance(shown, Table):
        assert shown.rows
        assert all(len(row) == len(shown.heads) for row in shown.rows)
        assert "not run" not in shown.markdown()


def test_all_states_are_done(root):
    kept = ResultsFolder(root)
    states = {name: reproduce.progress(exhibit, kept, quick=True)[1] for name, exhibit in EXHIBITS.items()}
    assert set(states.values()) == {"done"}


@pytest.mark.parametrize("name", EXHIBITS)
def test_without_runs_a_table_says_so_and_a_figure_is_not_drawn(tmp_path, name):
    exhibit, kept = EXHIBITS[name], ResultsFolder(tmp_path)
    assert reproduce.progress(exhibit, kept)[1] == "missing, time unknown"
    if name.startswith("table-"):
        assert "not run" in exhibit.render(kept, exhibit.runs()).markdown()
    else:
        with pytest.raises(drawings.MissingRuns):
            exhibit.render(kept, exhibit.runs())


def test_rendering_writes_every_format_and_one_page(root, tmp_path):
    shutil.copytree(root, tmp_path / "out")
    out = str(tmp_path / "out")
    for name in ("table-toy", "figure-tau"):
        assert cli.main(["reproduce", name, "--quick", "--as-is", "--out", out]) == 0
    paper = tmp_path / "out" / "paper"
    written = {path.name for path in paper.iterdir()}
    assert written == {
        "table-toy.md", "table-toy.csv", "figure-tau.pdf", "figure-tau.svg", "figure-tau.png", "index.html"
    }  # fmt: skip
    assert "FROMP-L2" in (paper / "figure-tau.svg").read_text()  # text stays text
    page = (paper / "index.html").read_text()
    assert "A quick version" in page
    assert "batch Adam" in page
    assert page.count('<img class="chart" src="data:image/svg+xml') == 1
    assert f"not rendered yet: <code>fromp reproduce figure-toy --quick --out {out}</code>" in page
    assert not re.search(r"https?:", page)


@pytest.mark.parametrize("name", [name for name in EXHIBITS if not name.startswith("table-")])
def test_a_figure_is_sharp_on_a_slide_and_says_what_it_is_of(root, tmp_path, name):
    """1,600 pixels at least; curves and bars say of how many seeds, and bars begin at zero."""
    exhibit = EXHIBITS[name]
    figure = exhibit.render(ResultsFolder(root), exhibit.runs(quick=True))
    written = [path for path in style.save(figure, tmp_path / name) if path.suffix == ".png"]
    with Image.open(written[0]) as picture:
        assert picture.width >= 1600
    legends = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    if figure.axes[0].patches and "bars" in name:
        assert figure.axes[0].get_ylim() == (0, 100)
    if name in ("figure-cifar-bars", "figure-memory-mnist", "figure-tau"):
        assert legends
        assert all(re.search(r", [\d to]+ seeds?$", text) for text in legends)
        assert figure.axes[0].get_title()


@needs_browser
@pytest.mark.parametrize("width", [380, 1200])
def test_in_a_browser_the_page_of_everything_does_not_overflow(root, tmp_path, width):
    shutil.copytree(root, tmp_path / "out")
    names = ["table-mnist", "table-cifar", "figure-tau", "figure-toy", "figure-cifar-bars"]
    reproduce.render(names, tmp_path / "out", True, Console(quiet=True))
    found = look(tmp_path / "out" / "paper" / "index.html", tmp_path, width)
    assert found == {"beyond": [], "overflow": 0}


def test_states(tmp_path):
    tiny = replace(TINY, pictures=1)
    exhibit = shown(tiny)

    def state():
        return reproduce.progress(exhibit, ResultsFolder(tmp_path))

    assert state() == ("0/2", "missing, time unknown")
    write(tmp_path, tiny, 1)
    assert state() == ("1/2", "partial, about 3 s")  # as measured
    write(tmp_path, tiny, 2)
    assert state() == ("2/2", "snapshots missing, about 3 s")
    write_snapshots(tmp_path, tiny)
    assert state() == ("2/2", "done")
    write(tmp_path, tiny, 2, lr=0.5)
    assert state() == ("0/2", f"other settings in {tiny.place} (lr)")


def test_it_learns_what_is_missing_and_keeps_the_rest(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(EXHIBITS, "tiny", shown(TINY))
    arguments = ["reproduce", "tiny", "--out", str(tmp_path)]
    write(tmp_path, TINY, 1)  # as in a fresh clone: results.json without the seeds' folders
    before = store.read(tmp_path / TINY.place).recorded[0]
    assert cli.main(arguments) == 0
    assert "1 runs" in capsys.readouterr().out
    runs = store.read(tmp_path / TINY.place).recorded
    assert [run.seed for run in runs] == [0, 1]
    assert runs[0] == before
    took = json.loads((tmp_path / "paper" / "took.json").read_text())
    assert (took["runs"], took["rendered"], took["quick"]) == (1, ["tiny"], False)
    assert cli.main(arguments) == 0
    assert "runs," not in capsys.readouterr().out  # nothing was left to learn
    assert store.read(tmp_path / TINY.place).recorded == runs


def test_a_seed_is_learned_again_for_its_snapshots(tmp_path, monkeypatch):
    tiny = replace(TINY, pictures=1)
    monkeypatch.setitem(EXHIBITS, "tiny", shown(tiny))
    write(tmp_path, tiny, 2)
    middle = ResultsFolder(tmp_path).left(tiny)
    assert len(middle) == 1
    before, seen, snapshot = store.read(tmp_path / tiny.place).recorded, [], Run._snapshot
    monkeypatch.setattr(
        Run, "_snapshot", lambda run: (seen.append(store.read(tmp_path / tiny.place).recorded), snapshot(run))
    )
    assert cli.main(["reproduce", "tiny", "--out", str(tmp_path), "--quiet"]) == 0
    assert (seed_folder(tmp_path / tiny.place, middle[0]) / "tasks" / "2").exists()
    assert seen == [before, before]  # nothing that is done is lost before all of it is learned again
    assert store.read(tmp_path / tiny.place).recorded != before


def test_a_picture_is_drawn_of_the_seeds_that_are_done(tmp_path):
    tiny = replace(TINY, pictures=1)
    write(tmp_path, tiny, 1)
    with pytest.raises(drawings.MissingRuns, match="snapshots"):
        drawings.toy_tasks(ResultsFolder(tmp_path), [tiny])
    write_snapshots(tmp_path, replace(tiny, seeds=1))
    assert drawings.toy_tasks(ResultsFolder(tmp_path), [tiny]).axes
    assert ResultsFolder(tmp_path).left(tiny) == [1]


def test_other_settings_are_an_error_that_names_them(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(EXHIBITS, "tiny", shown(TINY))
    write(tmp_path, TINY, 2, lr=0.5)
    assert cli.main(["reproduce", "tiny", "--out", str(tmp_path)]) == 2
    assert "already holds a run with a different lr" in capsys.readouterr().err


def test_an_unknown_name_gets_the_nearest(tmp_path, capsys):
    assert cli.main(["reproduce", "figure-toi", "--out", str(tmp_path)]) == 2
    assert "unknown table or figure 'figure-toi'; did you mean 'figure-toy'?" in capsys.readouterr().err


def test_the_list_has_everything(tmp_path, capsys):
    assert cli.main(["reproduce", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in EXHIBITS)


def test_the_quick_version_is_cheap():
    assert all(runs.benchmark.startswith("toy") or runs.benchmark.endswith("digits") for runs in QUICK)
    assert max(runs.seeds for runs in QUICK) == 3  # as many as one figure shows, two elsewhere
    for runs in QUICK:
        assert runs.plan.training.epochs <= max(2, 2 * Plan.of(runs.benchmark, "fromp").training.epochs // 5)


def test_the_time_of_a_seed_is_that_of_the_method_there_else_of_fromp(tmp_path):
    kept = ResultsFolder(tmp_path)
    stronger = Required("toy", "ewc", changes={"strength": 100.0}, name="strength/ewc-100")
    assert kept.seconds(stronger) is None
    write(tmp_path, Required("toy", "fromp"), 2, seconds=7.0)
    assert kept.seconds(stronger) == 7.0
    write(tmp_path, Required("toy", "ewc"), 3, seconds=5.0)
    assert kept.seconds(stronger) == 5.0
    write(tmp_path, stronger, 1, seconds=4.0)
    assert kept.seconds(stronger) == 4.0
    assert kept.state(stronger).seconds == 4 * 4.0
    assert kept.seconds(Required("toy", "si")) == 7.0


def test_equal_places_have_equal_plans():
    for quick in (False, True):
        plans = {}
        for exhibit in EXHIBITS.values():
            for runs in exhibit.runs(quick):
                assert plans.setdefault(runs.place, runs.plan) == runs.plan


def test_the_layout_is_the_one_that_results_are_kept_in():
    places = {str(runs.place) for exhibit in EXHIBITS.values() for runs in exhibit.needed}
    assert {
        "toy/vcl-memorable", "permuted-mnist/memory/frorp-10", "split-mnist/tau/fromp-l2-100", "split-cifar/separate"
    } <= places  # fmt: skip


def test_forward_transfer_needs_networks_of_their_own(root, tmp_path):
    exhibit = EXHIBITS["table-transfer"]
    runs = exhibit.runs(quick=True)
    kept = ResultsFolder(root)
    fromp, separate = (next(one for one in runs if one.method == method) for method in ("fromp", "separate"))
    found, alone = (store.read(root / one.place).recorded[0] for one in (fromp, separate))
    last = len(found.accuracy)
    expected = sum(found.accuracy[i][i] - alone.last[i] for i in range(1, last)) / (last - 1)
    one = tables.measured(kept, fromp, "forward_transfer", separate)
    assert one.n == 2
    values = [one.mean - one.std / 2**0.5, one.mean + one.std / 2**0.5]
    assert min(abs(value - expected) for value in values) < 1e-12


def test_the_methods_beside_batch_adam_are_told_apart():
    figure = toy_strip  # without captions it says after which task
    boundary = Boundary(3, (0, 1, 0, 1), np.full((4, 4), 0.2), [], [])
    texts = [text.get_text() for axes in figure([boundary], ["FROMP"]).axes for text in axes.texts]
    assert texts == ["FROMP"]
    assert [text.get_text() for axes in figure([boundary]).axes for text in axes.texts] == ["after task 3"]


def test_not_yet_is_an_error_of_ours():
    assert issubclass(drawings.MissingRuns, FrompError)
