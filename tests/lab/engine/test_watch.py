"""What a run shows while it goes on."""

import sys
from pathlib import Path
from types import SimpleNamespace

from fromp.lab.cli import main
from fromp.lab.engine.watch import boundaries_line


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
