"""What curvature and kernels cost, and how far their cheaper forms are off; each section can be measured alone.

python -m fromp.lab.bench.curvature --out results/bench [SECTION ...]
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fromp.foundation import storage
from fromp.lab.bench.absent import absent_errors
from fromp.lab.bench.cases import SETTINGS
from fromp.lab.bench.kept import kept_errors
from fromp.lab.bench.many_examples import errors_by_examples
from fromp.lab.bench.memory import peak_memory
from fromp.lab.bench.signs import sign_errors
from fromp.lab.bench.steps import fromp_step, one_graph_step
from fromp.lab.bench.text import text_cost
from fromp.lab.bench.timing import interleaved
from fromp.lab.engine.threads import keep_memory
from fromp.lab.results.environment import environment


def table(report: dict[str, Any]) -> str:
    """All sections as Markdown, for docs/library/scaling.md."""
    machine = "{cores} cores of {processor}".format(**report["signs"]["environment"])
    lines = [
        f"Measured on {machine}, one thread, while the machine was busy: only the ratios count.",
        "\n| transformer, 4.3 million weights, 30,522 words | `end_task` / epoch of plain training |\n|---|---:|",
    ]
    lines += [
        f"| {row['classes']} classes, {row['examples']} examples, {row['points']} points | {row['epochs']:.1f} |"
        for row in report["text"]["rows"]
    ]
    lines.append(
        "\n| classes | curvature | error of the precision | of K | of the penalty's gradient | times faster |\n"
        "|---:|---|---:|---:|---:|---:|"
    )
    for row in report["signs"]["rows"]:
        for way, errors in row["relative_error"].items():
            of = " | ".join(f"{100 * errors[name]:.1f} %" for name in ("precision", "kernel", "gradient"))
            lines.append(f"| {row['classes']} | {way} | {of} | {row['times_faster'][way]:.1f} |")
    if "examples" in report:
        lines.append(
            "\n| network of | examples | error of the precision by signs | of K | of the penalty's gradient |\n"
            "|---|---:|---:|---:|---:|"
        )
        for row in report["examples"]["rows"]:
            of = " | ".join(f"{100 * row['relative_error'][n]:.2f} %" for n in ("precision", "kernel", "gradient"))
            lines.append(f"| {row['data']}, {row['classes']} classes | {row['examples']:,} | {of} |")
    if "kept" in report:
        lines.append(
            "\n| what is kept of a kernel, 10 classes, 200 points | jitter | memory | error of d' K^-1 d | of K^-1 d | "
            "of the penalty's gradient |\n|---|---:|---:|---:|---:|---:|"
        )
        for row in report["kept"]["rows"]:
            of = " | ".join(_percent(row["relative_error"][n]) for n in ("distance", "solution", "gradient"))
            lines.append(f"| {row['way']} | {row['jitter']:g} | {row['bytes'] / 2**20:.2f} MB | {of} |")
    if "absent" in report:
        lines.append(
            "\n| 10 of 100 classes, one head | error of the penalty's gradient without the other 90 | with I / jitter "
            "for them | outputs with tr K < jitter / 1000 |\n|---|---:|---:|---:|"
        )
        for row in report["absent"]["rows"]:
            jitter = "the default" if row["jitter"] is None else f"{row['jitter']:g}"
            of = " | ".join(_percent(row[name]) for name in ("dropped", "ridge", "small"))
            lines.append(f"| jitter {jitter} | {of} |")
    (row,) = report["blocks"]["rows"]
    lines.append("\n| step of the CNN, 5 past tasks | growth of peak memory, MB | time |\n|---|---:|---:|")
    whole = row["seconds"]["fromp step in one graph"]
    lines += [f"| {way} | {row['MB'][way]:.0f} | {row['seconds'][way] / whole:.2f} |" for way in row["MB"]]
    return "\n".join(lines)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share > 0.1 else f"{100 * share:.2g} %"


def blocks() -> list[dict[str, Any]]:
    """A step of the CNN with five past tasks, its penalty's gradient block by block and in one graph."""
    setting = SETTINGS["cnn"]()
    x, y, prior = setting.images(setting.batch_size), setting.labels(setting.batch_size), setting.prior(5)
    seconds = interleaved(
        {
            "fromp step, 5 past tasks": lambda: fromp_step(setting, x, y, prior, None),
            "fromp step in one graph": lambda: one_graph_step(setting, x, y, prior),
        },
        3,
    )
    return [
        {
            "network": "cnn",
            "blocks": len(prior.blocks),
            "seconds": seconds,
            "MB": {way: peak_memory("cnn", way) for way in seconds},
        }
    ]


SECTIONS: dict[str, Callable[[], Any]] = {
    "blocks": blocks,
    "signs": lambda: [sign_errors(classes, repetitions) for classes, repetitions in ((2, 5), (10, 3), (100, 1))],
    "examples": lambda: list(errors_by_examples()),
    "kept": kept_errors,
    "absent": absent_errors,
    "text": lambda: [text_cost(classes, 5) for classes in (2, 4)],
}


def main(out: Path, sections: list[str]) -> None:
    """Measure some sections, and write them to out/curvature.json beside those it has."""
    keep_memory()
    torch.set_num_threads(1)
    path = out / "curvature.json"
    report = json.loads(path.read_text()) if path.exists() else {}
    for name in sections:
        report[name] = {"environment": environment(), "threads": 1, "rows": SECTIONS[name]()}
        print(json.dumps(report[name], indent=1), flush=True)
        out.mkdir(parents=True, exist_ok=True)
        storage.replace(path, (json.dumps(report, indent=1) + "\n").encode())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"among {', '.join(SECTIONS)}; default all")
    arguments = parser.parse_args()
    main(arguments.out, arguments.sections or list(SECTIONS))
