"""Plans: each setting has one owner, and every older result file is understood."""

import json
import pickle

import pytest

from fromp.foundation.errors import FrompError
from fromp.lab.benchmarks.catalogue import BENCHMARKS
from fromp.lab.methods import METHODS
from fromp.lab.results.plan import Found, FoundByWelch, Given, Plan, comparison
from fromp.lab.settings import described, names


def recorded(plan, **changes):
    """As a result file has it."""
    found = json.loads(json.dumps(plan.as_json()))
    return {**found, "settings": {**found["settings"], **changes}}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_every_preset_is_possible_and_comes_back_from_a_file(benchmark, method):
    plan = Plan.of(benchmark, method)
    assert plan.differences(recorded(plan)) == []
    assert Plan.changes(recorded(plan)) == {}
    assert Plan.read(recorded(plan)) == pickle.loads(pickle.dumps(plan)) == plan


@pytest.mark.parametrize("method", METHODS)
def test_each_setting_has_one_owner_and_a_meaning(method):
    for boundaries in (Given(), Found(), FoundByWelch()):
        plan = Plan.of("toy", method, schedule="constant", boundaries=boundaries.boundaries)
        every = [name for part in plan.parts for name in names(part)]
        assert len(set(every)) == len(every)
        assert all(one.meaning for part in plan.parts for one in described(type(part)) if one.name != "boundaries")


def test_a_run_records_the_settings_that_it_has_and_no_others():
    assert set(Plan.of("split-mnist", "ewc").flat()) == {
        "tasks", "validation", "hidden", "activation", "epochs", "batch_size", "lr", "clip_norm", "schedule", "betas",
        "eps", "late_lr", "strength", "boundaries",
    }  # fmt: skip
    assert not {"hidden", "tau"} & Plan.of("split-cifar", "ewc").flat().keys()
    task_free = Plan.of("toy", "fromp", boundaries="calibrated", schedule="constant").flat()
    assert {"false_alarm", "reservoir"} <= task_free.keys()
    assert "threshold" not in task_free


def test_text_is_read_as_the_type_that_a_setting_has():
    plan = Plan.of("toy", "fromp", lr="1e-2", epochs="3", hidden="7,8", tasks_per_step="2", betas="0.8,0.9")
    assert (plan.training.lr, plan.training.epochs, plan.network.hidden) == (0.01, 3, (7, 8))
    assert (plan.options.tasks_per_step, plan.training.betas) == (2, (0.8, 0.9))
    assert Plan.of("split-mnist", "fromp", clip_norm="none").training.clip_norm is None


@pytest.mark.parametrize(
    ("method", "changes", "expected"),
    [
        ("ewc", {"strength": 0.5}, ["strength"]),
        ("ewc", {"lr": 0.5, "schedule": "constant"}, ["lr", "schedule"]),
        ("fromp", {"tau": 3.0}, ["tau"]),
        ("fromp", {"memory": 10}, ["tau", "memory"]),
        ("fromp", {"clip_norm": None}, ["clip_norm"]),
        ("fromp", {"tau": 3.0, "clip_norm": 0.005}, ["clip_norm", "tau"]),
        ("vcl", {"start": "posterior"}, ["start"]),
    ],
)
def test_what_differs_is_named(method, changes, expected):
    other = Plan.of("permuted-mnist", method, **changes)
    assert Plan.of("permuted-mnist", method).differences(recorded(other)) == expected
    assert Plan.changes(recorded(other)) == {key: other.flat()[key] for key in expected}
    assert Plan.read(recorded(other)) == other


def test_settings_that_a_plan_does_not_have_are_ignored():
    plan = Plan.of("toy", "ewc")
    assert plan.differences(recorded(plan, tau=3.0, jitter=0.5, of_tomorrow=1)) == []


# What a file of each age has, by the names of then; the newest has every setting of every method.
OLD = {
    "tasks": 5, "epochs": 15, "batch_size": 128, "lr": 1e-4, "tau": 10.0, "memory": 40, "prior_precision": 1e-3,
    "jitter": 1e-6, "clip": 0.1, "beta1": 0.9, "beta2": 0.999, "schedule": "constant", "hidden": [256, 256],
    "activation": "relu", "validation": 0.0,
}  # fmt: skip


def test_an_older_file_is_understood():
    """Its clip is in units of tau; what it does not say had its default."""
    plan, old = Plan.of("split-mnist", "fromp"), {"benchmark": "split-mnist", "method": "fromp", "settings": OLD}
    assert plan.differences(old) == []
    assert Plan.read(old) == plan
    old["settings"] = {**OLD, "clip": 0.2}
    assert plan.differences(old) == ["clip_norm"]
    assert Plan.read(old).training.clip_norm == 2.0
    old["settings"] = {**OLD, "clip": None, "beta1": 0.99, "boundaries": "welch", "threshold": 2.0, "reservoir": 100}
    assert Plan.changes(old) == {
        "clip_norm": None, "betas": [0.99, 0.999], "boundaries": "welch", "reservoir": 100, "threshold": 2.0,
    }  # fmt: skip
    other = {**old, "method": "vcl", "settings": {**OLD, "initial_deviation": 0.01, "epochs": 30}}
    assert "start" not in Plan.of("split-mnist", "vcl").differences(other)
    assert "initial_deviation" in Plan.of("split-mnist", "vcl").differences({**other, "settings": OLD})


def test_methods_that_are_compared_each_get_the_changes_they_have():
    plans = comparison("toy", ["fromp", "ewc"], {"memory": 10, "epochs": 3})
    assert plans["fromp"] == Plan.of("toy", "fromp", memory=10, epochs=3)
    assert plans["ewc"] == Plan.of("toy", "ewc", epochs=3)
    with pytest.raises(FrompError, match="fromp has no setting strengths; it has tau"):
        comparison("toy", ["fromp", "ewc"], {"strengths": 1})


def test_memory_scales_tau():
    """And with it the clip, which the released code has in units of tau: of FROMP alone, that has both."""
    fewer = Plan.of("permuted-mnist", "fromp", memory=10)
    assert (fewer.options.tau, fewer.training.clip_norm) == (0.5 * 20, 0.005 * 20)
    given = Plan.of("permuted-mnist", "fromp", memory=10, tau=1.0)
    assert (given.options.tau, given.training.clip_norm) == (1.0, 0.01)
    assert Plan.of("permuted-mnist", "fromp", memory=10, tau=1.0, clip_norm=0.5).training.clip_norm == 0.5
    assert Plan.of("permuted-mnist", "fromp", tau=0).training.clip_norm == 0.01
    assert Plan.of("split-cifar", "replay", memory=10).training.clip_norm == 1000
