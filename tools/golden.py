"""Golden numbers: what short runs and kept results give, to compare before and after a change.

    python tools/golden.py write FILE.json    run all cases and write every number of them
    python tools/golden.py compare REV        run all cases here and at a git revision, and compare them bit for bit
    python tools/golden.py keep [METHOD ...]  renew tests/oracles/golden, which tests/test_golden.py compares with
                                              (all cases, or those of some methods)

Bits differ between processors, so what `keep` writes has no hashes, and the tests compare runs with a tolerance.
`write` and `compare` take about a minute on two cores.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "tests" / "oracles" / "golden"
SEED = 0
TESTED = 20  # examples of each task whose outputs are compared

METHODS = (
    "fromp", "fromp-l2", "frorp", "frorp-l2", "ewc", "dlp", "si", "vcl", "vcl-coreset", "vcl-memorable",
    "functional-l2", "replay", "der++", "mixed-past", "frcl-random", "frcl-trace", "finetune", "separate", "joint",
    "fromp-relaxed",
)  # fmt: skip
# What a few methods have beside, made quick.
QUICK: dict[str, dict[str, Any]] = {
    "vcl-coreset": {"coreset_epochs": 20}, "vcl-memorable": {"coreset_epochs": 20}, "frcl-trace": {"search": 20},
    "fromp-relaxed": {"across_tasks": True, "trace_directions": 1, "prior_samples": 2, "prior_precision": 1.0},
}  # fmt: skip
TOY = {"tasks": 3, "epochs": 2}  # three tasks: the last one is learned with two in the past
DIGITS = {"tasks": 2, "epochs": 3}
# By name: the benchmark, the method, and the settings that are not the preset's.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    **{f"toy/{method}": ("toy", method, TOY | QUICK.get(method, {})) for method in METHODS},
    **{f"split-digits/{method}": ("split-digits", method, DIGITS | QUICK.get(method, {})) for method in METHODS},
    "permuted-digits/fromp": ("permuted-digits", "fromp", DIGITS),
    "toy/fromp/one-past-task-per-step": ("toy", "fromp", {**TOY, "tasks_per_step": 1}),
    "toy/fromp/memory-5": ("toy", "fromp", {**TOY, "memory": 5}),  # tau grows with fewer points
    "toy/fromp/validation": ("toy", "fromp", {**TOY, "validation": 0.2}),
    "toy/vcl/from-the-posterior": ("toy", "vcl", {**TOY, "start": "posterior"}),
    "toy/fromp/boundaries-found": (
        "toy",
        "fromp",
        {"tasks": 2, "epochs": 5, "lr": 0.03, "boundaries": "calibrated", "schedule": "constant"},
    ),
}

Case = dict[str, Any]  # a run's numbers as JSON values
Losses = list[list[tuple[float, float]]]  # data and penalty of each step of each task


class Learned(NamedTuple):
    """What a run leaves behind."""

    accuracy: list[list[float] | None]  # None after a task at which nothing was trained
    boundaries: list[list[int]] | None  # those found
    losses: Losses
    weights: dict[str, Tensor]
    outputs: list[Tensor]  # of each task's first test examples, after the last task


def learn(benchmark: str, method: str, changes: dict[str, Any], folder: Path) -> Learned:
    """One run of a case."""
    from fromp.derivatives.model import evaluating
    from fromp.lab.benchmarks.catalogue import BENCHMARKS
    from fromp.lab.engine.run import run_of
    from fromp.lab.results.plan import Plan

    plan = Plan.of(benchmark, method, **changes)
    losses: Losses = [[] for _ in range(plan.stream.tasks)]

    run = run_of(plan, BENCHMARKS[benchmark], SEED, folder)
    for progress in run.learn():
        if not progress.finished:
            losses[progress.task].append((float(progress.loss.data), float(progress.loss.penalty)))
    with evaluating(run.model), torch.no_grad():
        outputs = [
            run.method.predict_outputs(task.test.take(torch.arange(TESTED))[0], task.head, place)
            for place, task in enumerate(map(run.stream.task, range(len(run.stream))))
        ]
    boundaries = run.result().boundaries
    return Learned(run.rows, boundaries["found"] if boundaries else None, losses, run.model.state_dict(), outputs)


def settings() -> dict[str, Case]:
    """Of each kept result: what differs from today's preset, and the average accuracy.

    Settings that were tried stand in selection.json, under the name of the folder that they were learned in.
    """
    from fromp.lab.results import selection
    from fromp.lab.results.plan import Plan
    from fromp.lab.results.store import find

    results = ROOT / "results"
    every = {path.parent: find(path.parent)[0] for path in results.rglob("results.json")}
    for file in results.rglob(selection.FILE):
        every |= {file.parent / "selection" / kept.name: kept for kept in selection.read(file)}
    found = {}
    for path, kept in sorted(every.items()):
        changes, preset = Plan.changes(kept.plan), Plan.of(kept.benchmark, kept.method)
        changed = {key: changes[key] for key in preset.differences(kept.plan)}
        accuracy = kept.summary("average_accuracy")
        assert accuracy is not None
        found[str(path.relative_to(results))] = {
            "benchmark": kept.benchmark, "method": kept.method, "changed": changed,
            "mean": accuracy.mean, "n": accuracy.n,
        }  # fmt: skip
    return found


def record(name: str) -> Case:
    """Every number of a case."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        learned = learn(*CASES[name], Path(folder))
    digest = hashlib.sha256()
    for value in learned.weights.values():
        digest.update(value.contiguous().numpy().tobytes())
    return {
        "accuracy": learned.accuracy,
        "boundaries": learned.boundaries,
        "losses": learned.losses,
        "sha256": digest.hexdigest(),
        "weights": {
            name: {"mean": float(value.double().mean()), "abs_sum": float(value.double().abs().sum())}
            for name, value in learned.weights.items()
        },
        "outputs": [value.tolist() for value in learned.outputs],
    }


def summary(case: Case) -> Case:
    """What another processor gives as well, up to rounding: first, last and sum of each task's losses, and the like."""

    def of_task(losses: list[tuple[float, float]]) -> dict[str, list[float]]:
        columns = zip(("data", "penalty"), zip(*losses, strict=True), strict=True)
        return {name: [_rounded(x) for x in (of[0], of[-1], sum(of))] for name, of in columns}

    return {
        "accuracy": case["accuracy"],
        "boundaries": case["boundaries"],
        "losses": [of_task(losses) if losses else {} for losses in case["losses"]],
        "weights": {name: _rounded(of["abs_sum"]) for name, of in case["weights"].items()},
        "outputs": [[_rounded(f) for example in of_task[:3] for f in example] for of_task in case["outputs"]],
    }


def _rounded(value: float) -> float:
    return float(f"{value:.8g}")


def write(file: Path) -> None:
    """Every case, into a file."""
    import fromp

    if ROOT not in (package := Path(fromp.__file__).resolve()).parents:
        raise SystemExit(f"fromp is imported from {package.parent}, not from {ROOT}; set PYTHONPATH.")
    file.write_text(_lines({name: record(name) for name in CASES}), encoding="utf-8")


def keep(methods: list[str]) -> None:
    """Renew what the tests compare with: every case, or those of some methods."""
    KEPT.mkdir(parents=True, exist_ok=True)
    file = KEPT / "runs.json"
    kept = json.loads(file.read_text(encoding="utf-8")) if methods else {}
    again = {name for name, (_, method, _) in CASES.items() if method in methods or name not in kept}
    runs = {name: summary(record(name)) if name in again else kept[name] for name in CASES}
    file.write_text(_lines(runs), encoding="utf-8")
    (KEPT / "settings.json").write_text(_lines(settings()), encoding="utf-8")


def _lines(entries: dict[str, Case]) -> str:
    """JSON with one line per entry, so that a diff names what changed."""
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items()) + "\n}\n"


def compare(revision: str) -> int:
    """Run all cases here and at a revision; returns 1 if any number of a case of that revision differs here."""
    with tempfile.TemporaryDirectory() as temporary:
        tree, files = Path(temporary, "tree"), [Path(temporary, name) for name in ("then.json", "now.json")]
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), revision], check=True)
        try:
            if not (tree / "tools" / "golden.py").exists():
                raise SystemExit(f"{revision} has no tools/golden.py; name a later revision.")
            started = [_start(root, file) for root, file in zip((tree, ROOT), files, strict=True)]
            codes = [process.wait() for process in started]
            if any(codes):
                raise SystemExit("the cases did not run to their end; the error stands above.")
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
        then, now = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    found = {name: difference(case, now.get(name)) for name, case in then.items()}
    for name, different in found.items():
        print(f"{name}: {different or 'equal'}")
    for name in sorted(now.keys() - then.keys()):
        print(f"{name}: new")
    return int(any(found.values()))


def _start(root: Path, file: Path) -> subprocess.Popen:
    """The cases of a working tree, by its own copy of this script, in a process of one thread."""
    package = root / "src" if (root / "src").exists() else root
    environment = {**os.environ, "PYTHONPATH": str(package), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, str(root / "tools" / "golden.py"), "write", str(file)]
    return subprocess.Popen(command, cwd=root, env=environment)


def difference(then: Case, now: Case | None) -> str:
    """The first loss and the names of the other numbers that differ; empty if nothing does."""
    if now is None:
        return "MISSING"
    found = [key for key in then if key != "losses" and then[key] != now.get(key)]
    if then["losses"] != now["losses"]:
        found.append(_first_difference(then["losses"], now["losses"]))
    return f"DIFFERS in {', '.join(found)}" if found else ""


def _first_difference(then: Losses, now: Losses) -> str:
    for task, (a, b) in enumerate(zip(then, now, strict=False), 1):
        for step, (one, other) in enumerate(zip(a, b, strict=False), 1):
            if one != other:
                return f"the loss from step {step} of task {task} on ({one} then, {other} now)"
    return "the number of steps"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", file]:
            write(Path(file))
        case ["compare", revision]:
            sys.exit(compare(revision))
        case ["keep", *methods]:
            keep(methods)
        case _:
            sys.exit(__doc__)
