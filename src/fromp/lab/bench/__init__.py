"""What the method costs, as ratios measured in one run with interleaved repetitions."""

import json
from pathlib import Path
from typing import Any

import torch

from fromp.foundation import storage
from fromp.lab.bench.cases import PAST_TASKS, SETTINGS, THREADS
from fromp.lab.bench.machine import CASES, kept_memory, peak_memory, profile
from fromp.lab.bench.runs import curvature_costs, engine_cost, images_of, split_cifar_cost
from fromp.lab.bench.steps import method_costs, step_costs
from fromp.lab.bench.table import table
from fromp.lab.engine.threads import keep_memory
from fromp.lab.report import figures
from fromp.lab.results.environment import environment


def main(out: Path, quick: bool = False) -> dict[str, Any]:
    """Measure everything, print it as a table, and write out/bench.json."""
    keep_memory()
    report: dict[str, Any] = {"environment": environment(), "steps": [], "curvature": [], "memory": []}
    for name in SETTINGS:
        torch.set_num_threads(THREADS[name])
        tasks = PAST_TASKS[name][:2] if quick else PAST_TASKS[name]
        repetitions = 3 if quick else {"mlp": 40, "cnn": 7}[name]
        report["steps"] += step_costs(name, tasks, repetitions)
        report["curvature"].append(curvature_costs(name, 2 if quick else 5))
    report["profile"] = profile(1 if quick else 3)
    report["kept_memory"] = kept_memory(1 if quick else 5)
    if not quick:
        report["split_cifar"] = split_cifar_cost(report["steps"], report["curvature"])
    torch.set_num_threads(1)
    report["methods"] = method_costs(3 if quick else 40)
    report["engine"] = engine_cost(2 if quick else 15)
    for name in SETTINGS:
        # The slow twin's Jacobians take ten minutes on the CNN.
        cases = [case for case in CASES if (name, case) != ("cnn", "slow twin of it")]
        report["memory"].append({"network": name} | {case: peak_memory(name, case) for case in cases})
    out.mkdir(parents=True, exist_ok=True)
    storage.replace(out / "bench.json", (json.dumps(report, indent=1) + "\n").encode())
    figures.save(figures.step_cost(report["steps"]), out / "step-cost")
    print(table(report))
    print(f"written: {out / 'bench.json'}")
    return report


__all__ = ["images_of", "main", "table"]
