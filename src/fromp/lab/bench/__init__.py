"""What the method costs, as ratios measured in one run with interleaved repetitions."""

import json
from pathlib import Path
from typing import Any

import torch

from fromp.foundation import storage
from fromp.lab.bench import table
from fromp.lab.bench.cases import PAST_TASKS, SETTINGS, THREADS
from fromp.lab.bench.memory import CASES, peak_memory
from fromp.lab.bench.steps import method_costs, step_costs
from fromp.lab.bench.task_end import curvature_costs, engine_cost
from fromp.lab.engine.threads import keep_memory
from fromp.lab.report.figures import cost, style
from fromp.lab.results.environment import environment
from fromp.learn.console import printable


def main(out: Path, quick: bool = False) -> dict[str, Any]:
    """Measure everything, print each case as it comes, and write out/bench.json."""
    keep_memory()
    report: dict[str, Any] = {"environment": environment(), "steps": [], "curvature": []}
    _say(table.STEPS)
    for name in SETTINGS:
        torch.set_num_threads(THREADS[name])
        tasks = PAST_TASKS[name][:2] if quick else PAST_TASKS[name]
        for row in step_costs(name, tasks, 3 if quick else {"mlp": 40, "cnn": 7}[name]):
            report["steps"].append(row)
            _say(table.step_row(row))
    _say(table.CURVATURE)
    for name in SETTINGS:
        torch.set_num_threads(THREADS[name])
        report["curvature"].append(curvature_costs(name, 2 if quick else 5))
        _say(table.curvature_row(report["curvature"][-1]))
    torch.set_num_threads(1)
    report["methods"] = method_costs(3 if quick else 40)
    _say(table.methods_table(report["methods"]))
    report["engine"] = engine_cost(2 if quick else 15)
    _say(table.engine_line(report["engine"]))
    report["memory"] = []
    _say(table.MEMORY)
    for name in SETTINGS:
        # The slow twin's Jacobians take ten minutes on the CNN.
        cases = [case for case in CASES if (name, case) != ("cnn", "slow twin of it")]
        report["memory"].append({"network": name} | {case: peak_memory(name, case) for case in cases})
        _say(table.memory_row(report["memory"][-1]))
    out.mkdir(parents=True, exist_ok=True)
    storage.replace(out / "bench.json", (json.dumps(report, indent=1) + "\n").encode())
    style.save(cost.step_cost(report["steps"]), out / "step-cost")
    _say(f"\nwritten: {out / 'bench.json'}")
    return report


def _say(text: str) -> None:
    print(printable(text), flush=True)
