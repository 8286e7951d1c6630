"""The report as Markdown, in sections that are printed as they are measured."""

from typing import Any

from fromp.lab.bench.memory import CASES

STEPS = (
    "| network | past tasks | step / plain Adam, as many samples | two past tasks per step | slow twin / step |\n"
    "|---|---:|---:|---:|---:|"
)
CURVATURE = (
    "\n| network | GGN / one backward pass per class over its examples | kernels of a task / the same over memory |\n"
    "|---|---:|---:|"
)
MEMORY = "\n| growth of peak memory, MB | " + " | ".join(CASES) + " |\n|---|" + "---:|" * len(CASES)


def table(report: dict[str, Any]) -> str:
    """All of it, for docs/library/scaling.md."""
    lines = [STEPS, *map(step_row, report["steps"]), CURVATURE, *map(curvature_row, report["curvature"])]
    lines += [methods_table(report["methods"]), engine_line(report["engine"])]
    return "\n".join([*lines, MEMORY, *map(memory_row, report["memory"])])


def step_row(row: dict[str, Any]) -> str:
    slow = f"{row['slow_twin_ratio']:.0f} x" if "slow_twin_ratio" in row else ""
    drawn = f"{row['ratio_two_tasks']:.2f} x ({1e3 * row['seconds']['two tasks a step']:.1f} ms)"
    step = f"{row['ratio']:.2f} x ({1e3 * row['seconds']['fromp']:.1f} ms)"
    return f"| {row['network']} | {row['past_tasks']} | {step} | {drawn} | {slow} |"


def curvature_row(row: dict[str, Any]) -> str:
    kernel = f"{row['kernel_ratio']:.1f} x ({row['seconds']['kernel']:.2f} s)"
    return f"| {row['network']} | {row['ggn_ratio']:.2f} x | {kernel} |"


def methods_table(methods: dict[str, Any]) -> str:
    head = (
        f"\n| {methods['past_tasks']} past tasks of {methods['points']} points, mlp | step / `finetune` |\n|---|---:|"
    )
    rows = (f"| `{k}` | {v:.2f} x ({1e3 * methods['seconds'][k]:.2f} ms) |" for k, v in methods["ratio"].items())
    return "\n".join([head, *rows])


def engine_line(engine: dict[str, Any]) -> str:
    return f"\nA whole `finetune` run takes {engine['ratio']:.2f} x a loop written by hand on the same tensors."


def memory_row(row: dict[str, Any]) -> str:
    return f"| {row['network']} | " + " | ".join(f"{row[case]:.0f}" if case in row else "" for case in CASES) + " |"
