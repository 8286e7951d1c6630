"""What a run shows while it goes on."""

import io
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from fromp.lab.cli import main
from fromp.lab.engine.run import Progress
from fromp.lab.engine.watch import BESIDE, POST, Bars, Board, Pace, Posting, boundaries_line, fitting, parts, whole
from fromp.protocol import Loss


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


def test_where_new_tasks_were_found_in_a_line():
    found = {"true": [], "found": [], "misses": 0, "false_alarms": 0}
    assert boundaries_line(found) == "no new task found; there was none"
    found = {"true": [10, 20], "found": [[10, 13], [15, 18]], "misses": 1, "false_alarms": 1}
    assert boundaries_line(found) == "new tasks found at minibatch 10, 15; they began at 10, 20 (1 missed, 1 false)"
    many = list(range(20))
    found = {"true": many, "found": [[k, k] for k in many], "misses": 0, "false_alarms": 0}
    assert boundaries_line(found).count("11, ...") == 2


def progress_at(step, task=0, num_steps=1000, finished=False):
    loss = Loss(torch.tensor(0.12345), torch.tensor(12345.678))
    return Progress(3, task, 10, 0, step, num_steps, 20, finished, 100.0, [[0.9]], loss)


def test_what_does_not_fit_is_left_out_from_the_end():
    said = parts(progress_at(500), 61.0)
    assert said == [
        "task 1/10", "epoch 11/20", "1:01 left in task", "so far 90.0 %", "loss 0.123", "penalty 12345.678",
    ]  # fmt: skip
    assert fitting(said, 200) == "  ".join(said)
    assert fitting(said, 80 - BESIDE - 8) == "task 1/10  epoch 11/20  1:01 left in task"
    assert fitting(said, 5) == ""


def test_a_live_line_fits_eighty_columns():
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=True, color_system=None)
    with Bars(console) as shown:
        shown.show("seed 3", 0.5, parts(progress_at(500), 61.0))
        shown.show("seed 4", 0.5, parts(progress_at(500), 61.0))
    lines = [line for line in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue()).splitlines() if "seed" in line]
    assert lines
    assert all(len(line.rstrip()) <= 80 for line in lines)


def test_the_time_left_comes_from_steps_that_were_seen(monkeypatch):
    """A run that is resumed, or whose task took long to begin, has steps that say nothing of those to come."""
    now = [1000.0]
    monkeypatch.setattr("fromp.lab.engine.watch.time.monotonic", lambda: now[0])
    pace = Pace()
    assert pace.left(progress_at(1)) is None
    now[0] += 1.0
    assert pace.left(progress_at(101)) is None  # too early to tell
    now[0] += 1.0
    assert pace.left(progress_at(201)) == pytest.approx(2.0 / 200 * 799)
    assert pace.left(progress_at(1000, task=1, finished=True)) is None  # a finished task counts as of the next one
    assert pace.left(progress_at(1, task=1)) is None
    now[0] += 4.0
    assert pace.left(progress_at(401, task=1)) == pytest.approx(4.0 / 400 * 599)


def test_a_finished_task_is_not_the_next_one():
    finished = progress_at(1000, task=1, finished=True)
    assert (whole(finished), parts(finished, None)) == (0.1, ["task 1/10", "done"])


def test_workers_are_followed_by_what_they_post(tmp_path):
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=True, color_system=None)
    folders = {3: tmp_path / "3", 4: tmp_path / "4"}
    for folder in folders.values():
        folder.mkdir()
    with Board(console, folders):
        posting = Posting(folders[3])
        posting(progress_at(1000, task=1, finished=True))
        posting(progress_at(10, task=1))
        (folders[4] / POST).write_text("not yet whole {")
    assert "after task 1/10" in file.getvalue()
    assert file.getvalue().count("after task 1/10") == 1
    assert [path.name for folder in folders.values() for path in folder.iterdir()] == []
