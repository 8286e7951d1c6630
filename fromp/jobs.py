"""Seeds learned one after another or several at once, each resumable, all in one folder."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from joblib import Parallel, delayed
from rich.console import Console

from fromp import results
from fromp.errors import CheckpointError, FrompError
from fromp.experiments import benchmark
from fromp.progress import Watcher
from fromp.progress import console as plain_console
from fromp.runs import CHECKPOINT_SECONDS, Interrupted, Moment, Plan, Run


def learn(
    plan: Plan,
    seeds: list[int],
    out: Path,
    console: Console,
    jobs: int = 1,
    quiet: bool = False,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    first_task: Path | None = None,
) -> int:
    """Learn every seed that is not done yet; the exit code, 128 + the signal if one came."""
    if jobs < 1:
        raise FrompError(f"--jobs {jobs} is impossible; use at least 1.")
    out.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(out / ".lock", timeout=0):
            _check_plan(plan, out)
            left = [seed for seed in seeds if not _done(out, seed)]
            if not quiet:
                already = f", {len(seeds) - len(left)} already done" if len(left) < len(seeds) else ""
                what = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
                console.print(f"{plan.benchmark} with {plan.method}, {what}{already}, in {out}", highlight=False)
            one = partial(_learn_one, plan, out=out, quiet=quiet, seconds=checkpoint_seconds, first_task=first_task)
            codes = _in_turn(one, left) if min(jobs, len(left)) <= 1 else _at_once(one, left, jobs)
    except Timeout as error:
        raise CheckpointError(f"another process is working in {out}; wait for it, or choose another --out.") from error
    return max(codes, default=0)


def _in_turn(one: Callable[[int], int], seeds: list[int]) -> list[int]:
    codes = []
    for seed in seeds:
        codes.append(one(seed))
        if codes[-1]:
            break
    return codes


def _at_once(one: Callable[[int], int], seeds: list[int], jobs: int) -> list[int]:
    return list(Parallel(n_jobs=min(jobs, len(seeds)))(delayed(_on_one_core)(one, seed) for seed in seeds))


def _on_one_core(one: Callable[[int], int], seed: int) -> int:
    torch.set_num_threads(1)
    return one(seed)


def _learn_one(plan: Plan, seed: int, out: Path, quiet: bool, seconds: float, first_task: Path | None) -> int:
    console = plain_console()
    run = Run(plan, benchmark(plan.benchmark), seed, results.seed_folder(out, seed), first_task)
    with Watcher(console, quiet) as show:

        def watch(moment: Moment) -> None:
            if moment.finished:
                results.record(out, plan, run.result())
            show(moment)

        try:
            results.record(out, plan, run.learn(watch, seconds))
        except Interrupted as stop:
            console.print(f"  seed {seed}: saved; run the same command again to go on", highlight=False)
            return 128 + stop.number
    return 0


def _done(out: Path, seed: int) -> bool:
    path = results.seed_folder(out, seed) / "run.json"
    if not path.exists():
        return False
    run: dict[str, Any] = json.loads(path.read_text())
    return len(run["accuracy"]) == run["tasks"]


def _check_plan(plan: Plan, out: Path) -> None:
    if not (out / "results.json").exists():
        return
    found, wanted = results.read(out), json.loads(json.dumps(plan.as_json()))
    different = [key for key in ("benchmark", "method") if found[key] != wanted[key]]
    different += [key for key, value in wanted["settings"].items() if found["settings"].get(key) != value]
    if different:
        raise CheckpointError(
            f"{out} holds a run with another {', '.join(different)}; choose another --out, or remove that folder."
        )
