"""A short plan, and what its folder comes to, for the tests of the engine."""

import json
from pathlib import Path

from fromp.lab.results.plan import Plan, comparison

SHORT = ["toy", "--tasks", "3", "--epochs", "2", "--memory", "10", "--quiet"]


SETTINGS = {"tasks": 2, "epochs": 1, "memory": 6, "tasks_per_step": 1}


PLAN = Plan.of("toy", "frorp", **SETTINGS)


def plan(method, **changes):
    return comparison("toy", ["frorp", method], {**SETTINGS, **changes})[method]


def accuracy(out):
    return [run["accuracy"] for run in json.loads((Path(out) / "results.json").read_text())["runs"]]
