"""The state folder: what is damaged is refused, and a process that is killed leaves the month before."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from oracles.months import month
from reliability.damage import damaged

from fromp.foundation import storage
from fromp.foundation.errors import CheckpointError, FrompError
from fromp.learn import Learner
from fromp.learn.saved import KIND


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("learned")
    learner = Learner(folder / "state")
    learner.learn(month(folder, 0), "churn", epochs=1, hidden=[4], memory_size=4, room=1)
    learner.learn(month(folder, 1), tau=1.0)
    return folder / "state"


@pytest.mark.parametrize("number", range(120))
def test_a_damaged_state_is_refused_or_works(learned, tmp_path, number):
    """With hashes that fit, as an attacker would have them: our error, or finite numbers."""
    state, _ = damaged(storage.read(learned, KIND), number)
    if state is None:
        return
    storage.write(tmp_path / "state", KIND, state)
    try:
        learner = Learner(tmp_path / "state")
        learner.inspect()
        evaluation = learner.evaluate()
    except FrompError:
        return
    assert len(evaluation.rows) == 2
    assert all(row["score"] is None or 0 <= row["score"] <= 100 for row in evaluation.rows)


def test_a_changed_file_is_refused(learned, tmp_path):
    for path in learned.iterdir():
        if path.is_file() and path.suffix in (".json", ".safetensors"):
            (tmp_path / path.name).write_bytes(path.read_bytes())
    state = next(tmp_path.glob("state-*.json"))
    state.write_text(state.read_text().replace("yes", "yet"))
    with pytest.raises(CheckpointError, match="is damaged"):
        Learner(tmp_path).evaluate()


KILLED = """
import sys, torch
from fromp.learn import Learner
torch.set_num_threads(1)
Learner(sys.argv[1]).learn(sys.argv[2], epochs=10_000_000, tau=1.0, watch=lambda what, share: print(share, flush=True))
"""


def test_a_killed_process_leaves_the_month_before(learned, tmp_path):
    before = {path.name: path.read_bytes() for path in learned.iterdir()}
    command = [sys.executable, "-c", KILLED, learned, month(tmp_path, 2)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline()  # it has begun to learn
        time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
    assert {path.name: path.read_bytes() for path in learned.iterdir()} == before
    assert [m.name for m in Learner(learned).months] == ["month-0", "month-1"]
    Learner(learned).forget("month-1")  # the lock of the dead process holds nobody up


def test_nothing_in_the_folder_can_run(learned):
    suffixes = {Path(name).suffix for name in os.listdir(learned)} - {""}
    assert suffixes <= {".json", ".safetensors", ".html", ".lock"}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_report_that_cannot_be_written_is_said_beside_a_state_that_is_saved(learned, tmp_path, monkeypatch, number):
    folder = tmp_path / "state"
    shutil.copytree(learned, folder)
    replace = storage.replace

    def full(path, data, private=False):
        if path.suffix == ".html":
            raise OSError(number, os.strerror(number))
        replace(path, data, private)

    monkeypatch.setattr(storage, "replace", full)
    with pytest.raises(FrompError, match=r"is saved, and its report\.html cannot"):
        Learner(folder).learn(month(tmp_path, 2), tau=1.0)
    assert len(Learner(folder).months) == 3
