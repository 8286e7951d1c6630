"""The report as tables."""

from typing import Any

from fromp.lab.bench.machine import CASES


def table(report: dict[str, Any]) -> str:
    """The report as Markdown, for the terminal and for docs/scaling.md."""
    lines = [
        "| network | past tasks | step / plain Adam, as many samples | two past tasks a step | slow twin / step |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in report["steps"]:
        slow = f"{row['slow_twin_ratio']:.0f} x" if "slow_twin_ratio" in row else ""
        drawn = f"{row['ratio_two_tasks']:.2f} x ({1e3 * row['seconds']['two tasks a step']:.1f} ms)"
        lines.append(
            f"| {row['network']} | {row['past_tasks']} | {row['ratio']:.2f} x ({1e3 * row['seconds']['fromp']:.1f} ms) "
            f"| {drawn} | {slow} |"
        )
    lines += [
        "",
        "| network | GGN / one backward pass a class over its examples | kernels of a task / the same over memory |",
        "|---|---:|---:|",
    ]
    lines += [
        f"| {row['network']} | {row['ggn_ratio']:.2f} x "
        f"| {row['kernel_ratio']:.1f} x ({row['seconds']['kernel']:.2f} s) |"
        for row in report["curvature"]
    ]
    if methods := report.get("methods"):  # a report from before they were measured has none
        lines += ["", f"| {methods['past_tasks']} past tasks of {methods['points']} points, mlp | step / `finetune` |"]
        lines += ["|---|---:|"]
        lines += [
            f"| `{name}` | {ratio:.2f} x ({1e3 * methods['seconds'][name]:.2f} ms) |"
            for name, ratio in methods["ratio"].items()
        ]
    if found := report.get("profile"):
        lines += ["", f"| a step of the cnn with {found['past_tasks']} past tasks | share of its time |", "|---|---:|"]
        lines += [f"| {kind} | {100 * share:.1f} % |" for kind, share in found["share"].items()]
        rate, (fastest, limit) = found["gflops"], max(found["gflops_at_full_rate"].items(), key=lambda of: of[1])
        convolutions = found["gflop_convolutions"] / (found["share"]["convolutions"] * found["gflop"] / rate)
        lines += [
            "",
            f"It is {found['gflop']:.0f} billion operations at {rate:.0f} billion a second; "
            f"{found['gflop_convolutions']:.0f} of them are convolutions', which run at {convolutions:.0f}. The most "
            f"that was seen of these cores is {limit:.0f}, in {fastest}: the step takes {limit / rate:.1f} times what "
            "its arithmetic alone would.",
        ]
    if found := report.get("kept_memory"):
        lines += [
            "",
            f"A plain step of the cnn takes {found['ratio']:.2f} x as long where what it frees is given back to the "
            "system, and not kept as `fromp run` keeps it.",
        ]
    if found := report.get("split_cifar"):
        lines += [
            "",
            f"A whole run of FROMP on Split CIFAR sees {found['images'] / 1e6:.1f} million images, those of memory "
            f"included, at {found['ratio']:.2f} x the images per second of plain training: {found['steps'] / 60:.0f} "
            f"minutes in steps, {found['ends'] / 60:.0f} at the ends of tasks.",
        ]
    engine = report["engine"]
    lines += ["", f"A whole `finetune` run takes {engine['ratio']:.2f} x a loop written by hand on the same tensors."]
    lines += ["", "| growth of peak memory, MB | " + " | ".join(CASES) + " |", "|---|" + "---:|" * len(CASES)]
    lines += [
        f"| {row['network']} | " + " | ".join(f"{row[case]:.0f}" if case in row else "" for case in CASES) + " |"
        for row in report["memory"]
    ]
    return "\n".join(lines)
