"""The examples of examples/models: each kind of model and loop loses less of its first task with the penalty."""

import importlib
import sys
from functools import partial
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples/models"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "two_tasks")


@pytest.mark.parametrize("name", NAMES)
def test_the_penalty_holds_the_first_task(name, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    try:
        run = importlib.import_module(name).run
    finally:
        for module in (name, "two_tasks"):
            sys.modules.pop(module, None)
    if name == "compiled":
        run = partial(run, backend="aot_eager")  # needs no compiler of C++
    without, held = run(False), run(True)
    assert without.lost > 0.1, "there is nothing to hold"
    assert held.lost < without.lost / 2
    assert held.new > without.new - 0.1
