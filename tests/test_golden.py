"""Short runs and kept results give what they gave when tests/oracles/golden was written.

After a change that is meant, renew it with `python tools/golden.py keep` and say why in the commit.
"""

import json

import golden
import pytest

from fromp.lab.methods import METHODS

RUNS = json.loads((golden.KEPT / "runs.json").read_text())
SLOW = {"toy/vcl-memorable"}  # it learns a whole toy with FROMP first; `tools/golden.py compare` runs it


def test_every_method_has_its_cases():
    assert set(golden.METHODS) == set(METHODS)
    assert set(golden.CASES) == set(RUNS)


@pytest.mark.parametrize("name", [name for name in RUNS if name not in SLOW])
def test_a_short_run_gives_the_same_numbers(name):
    """With a tolerance: another processor rounds differently, and memorable points can then change places."""
    found, kept = golden.summary(golden.record(name)), RUNS[name]
    assert found["losses"] == [
        {part: pytest.approx(values, rel=5e-4, abs=5e-5) for part, values in task.items()} for task in kept["losses"]
    ]
    assert found["accuracy"] == [pytest.approx(row, abs=0.02) for row in kept["accuracy"]]
    assert found["outputs"] == [pytest.approx(task, abs=3e-3) for task in kept["outputs"]]
    assert found["boundaries"] == kept["boundaries"]
    assert list(found["weights"]) == list(kept["weights"])
    assert found["weights"] == pytest.approx(kept["weights"], rel=5e-4)


def test_every_kept_result_differs_from_its_preset_in_the_same_settings():
    found, kept = golden.settings(), json.loads((golden.KEPT / "settings.json").read_text())
    assert list(found) == list(kept)
    different = {name: (found[name], kept[name]) for name in kept if found[name] != kept[name]}
    assert not different
