"""results.json: every run of a plan in one file, rewritten whenever one of them finishes a task; and as CSV."""

import json
from pathlib import Path
from typing import Any

from filelock import FileLock

from fromp.foundation import storage
from fromp.foundation.errors import CheckpointError
from fromp.lab.engine.threads import environment
from fromp.lab.results import metrics
from fromp.lab.results.plan import Plan

SUMMARISED = ("average_accuracy", "backward_transfer", "forward_transfer", "forgetting", "seconds")


def seed_folder(out: Path, seed: int) -> Path:
    """Where one seed's checkpoints and snapshots lie."""
    return out / "seeds" / str(seed)


def record(out: Path, plan: Plan, run: dict[str, Any]) -> None:
    """Put a run's present state into its own file, and all of them into results.json."""
    path = seed_folder(out, run["seed"])
    path.mkdir(parents=True, exist_ok=True)
    storage.replace(path / "run.json", json.dumps(run).encode())
    with FileLock(out / ".results.lock"):
        runs = [json.loads(file.read_text()) for file in sorted(out.glob("seeds/*/run.json"))]
        write(out, plan, sorted(runs, key=lambda run: run["seed"]))


def unfold(out: Path) -> None:
    """Put each run that only results.json has into a file of its own, so that `record` does not lose it."""
    if not (out / "results.json").exists():
        return
    for run in read(out)["runs"]:
        path = seed_folder(out, run["seed"]) / "run.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            storage.replace(path, json.dumps(run).encode())


def write(out: Path, plan: Plan, runs: list[dict[str, Any]]) -> None:
    """results.json with these runs."""
    _write(out, {**plan.as_json(), "environment": environment(), "runs": runs, "summary": summary(runs)})


def _write(out: Path, results: dict[str, Any]) -> None:
    storage.replace(out / "results.json", (json.dumps(results, indent=1) + "\n").encode())
    lines = ["seed,after_task,task,accuracy"]
    lines += [
        f"{run['seed']},{i + 1},{j + 1},{value}"
        for run in results["runs"]
        for i, row in enumerate(run["accuracy"])
        for j, value in enumerate(row)
    ]
    storage.replace(out / "accuracy.csv", ("\n".join(lines) + "\n").encode())


def add_forward_transfer(out: Path, separate: Path) -> None:
    """Put FWT into the runs of `out` whose seed was also learned by networks trained on each task alone."""
    found = read(out)
    by_seed = forward_transfers(found["runs"], read(separate)["runs"])
    for run in found["runs"]:
        if run["seed"] in by_seed:
            run["forward_transfer"] = by_seed[run["seed"]]
            storage.replace(seed_folder(out, run["seed"]) / "run.json", json.dumps(run).encode())
    _write(out, {**found, "summary": summary(found["runs"])})


def forward_transfers(runs: list[dict[str, Any]], separate: list[dict[str, Any]]) -> dict[int, float]:
    """FWT by seed, where networks that were trained on each task alone have learned the same seed and tasks."""
    alone = {run["seed"]: run["accuracy"][-1] for run in finished(separate)}
    found = {
        run["seed"]: metrics.forward_transfer(run["accuracy"], alone[run["seed"]])
        for run in finished(runs)
        if run.get("backward_transfer") is not None and len(alone.get(run["seed"], ())) == len(run["accuracy"])
    }
    return {seed: value for seed, value in found.items() if value is not None}


def finished(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs that have learned all their tasks."""
    return [run for run in runs if len(run["accuracy"]) == run.get("tasks", len(run["accuracy"]))]


def read(out: Path) -> dict[str, Any]:
    """What `write` wrote."""
    try:
        return json.loads((out / "results.json").read_text())
    except FileNotFoundError as error:
        raise CheckpointError(f"{out} holds no results.json; name a folder that `fromp run` wrote.") from error
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{out / 'results.json'} is damaged ({error}); run the same command again.") from error


def summary(runs: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Mean, deviation and error of each number over the runs that have finished."""
    values = {name: [run[name] for run in finished(runs) if run.get(name) is not None] for name in SUMMARISED}
    return {name: metrics.summarise(of) for name, of in values.items() if of}
