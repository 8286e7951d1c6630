"""Saved folders with one thing changed: refused with our error, or sound; never a crash, another error or a wrong load.

cd tools && python -m reliability.mutations --count 100000 --out ../results/reliability/mutations.json

Half of the changes leave the hashes as they are, as a fault of a disk would; then nothing but what was saved may load.
The other half comes with hashes that fit, as an attacker would make them; then what loads must give finite penalties
that are not negative. Each batch runs in a process of its own, whose death would be seen. What has been counted is kept
after each batch, and the same command goes on from there; it is three times as fast if TMPDIR lies in memory.
"""

import argparse
import hashlib
import json
import math
import multiprocessing
import resource
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch._dynamo  # which the first optimiser of a process imports
from safetensors.torch import load_file
from torch import nn

from fromp import (
    FROMP,
    Categorical,
    Composed,
    DataWide,
    FrompError,
    Hold,
    IdentityKernel,
    Logits,
    MixedPast,
    Remembered,
    formats,
)  # fmt: skip
from fromp.foundation import storage
from fromp.foundation.state import State
from fromp.lab.benchmarks.catalogue import BENCHMARKS
from fromp.lab.engine import run
from fromp.lab.methods import METHODS
from fromp.lab.results.plan import Plan
from fromp.learn import Learner
from fromp.learn.saved import KIND
from fromp.taskfree.learner import TaskFree
from reliability import ranks
from reliability.damage import damaged
from reliability.report import keep, kept

BATCH = 200  # changes per process, at most
FORKED: Any = multiprocessing.get_context("fork")  # from a process that has imported everything, and computes nothing
LARGEST = 2**30  # bytes that a process may take on top of what it began with


@dataclass(frozen=True)
class Victim:
    """Something that is saved: how a folder of it is made, and what it gives to one who reads it."""

    kind: str  # in the manifest
    make: Callable[[Path], None]
    use: Callable[[Path], list[float]]
    format: int = storage.FORMAT


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def _memory(new: Callable[[nn.Module], Any], load: Callable[[Path, nn.Module], Any]) -> Victim:
    """The folder of a regulariser after two tasks."""

    def make(folder: Path) -> None:
        reg = new(network())
        for _ in range(2):
            reg.end_task((torch.randn(40, 4), torch.arange(40) % 3))
        reg.save(folder)

    kind = type(new(network())).__name__
    return Victim(formats.KIND if kind == "FROMP" else kind, make, lambda folder: _penalties(partial(load, folder)))


def _fromp(**options: Any) -> Victim:
    return _memory(lambda model: FROMP(model, Categorical(), memory_size=6, **options), FROMP.load)


def _mixed() -> Victim:
    def new(model: nn.Module) -> MixedPast:
        return MixedPast(model, Categorical(), 6, weight_strength=1.0, label_strength=1.0)

    return _memory(new, MixedPast.load)


def _composed() -> Victim:
    holds = [Hold(Remembered(), DataWide(), 1.0), Hold(Remembered(), Logits(), 0.5)]

    def load(folder: Path, model: nn.Module) -> Composed:
        return Composed.load(folder, model, holds)

    return _memory(lambda model: Composed(model, Categorical(), holds, 6), load)


def _of_ranks() -> Victim:
    """What two processes that learn together have saved."""

    def use(folder: Path) -> list[float]:
        return _penalties(lambda model: FROMP.load(folder, model), ranks.network)

    return Victim(
        "fromp", lambda folder: _moved(ranks.learned(folder.parent / "ranks", 2, "fork") / "memory", folder), use
    )


def _of_first_format() -> Victim:
    saved = Path(__file__).parents[2] / "tests" / "oracles" / "folders" / "0.1" / "full"

    def use(folder: Path) -> list[float]:
        return _penalties(lambda model: FROMP.load(folder, model), lambda: _of_four(saved))

    return Victim("fromp", lambda folder: _moved(saved, folder), use, format=1)


def _of_four(saved: Path) -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
    model.load_state_dict(load_file(saved.with_suffix(".safetensors")))
    return model


def _moved(source: Path, folder: Path) -> None:
    shutil.copytree(source, folder)


def _without_tasks() -> Victim:
    """What a `TaskFree` has saved in the middle of a task."""

    def learner() -> TaskFree:
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        return TaskFree(FROMP(model, Categorical(), memory_size=6), optimizer, reservoir=40, min_task_examples=20)

    def show(to: TaskFree, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(12):
            to.observe(torch.randn(8, 4, generator=generator), torch.arange(8) % 3)

    def make(folder: Path) -> None:
        of = learner()
        show(of, 0)
        of.end_task()
        show(of, 1)
        of.save(folder)

    def use(folder: Path) -> list[float]:
        of = learner()
        of.load(folder)
        show(of, 2)
        of.end_task()
        return [float(of.loss.data), float(of.loss.penalty), of.regulariser.penalty().item()]

    return Victim("task-free", make, use)


def _penalties(load: Callable[[nn.Module], Any], build: Callable[[], nn.Module] = network) -> list[float]:
    model = build()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.01)
    reg = load(model)
    return [reg.penalty().item() for _ in range(2)]


def _needed(plan: Plan, asked: Callable[[Plan], Plan | None] = run.needed) -> Plan | None:
    """The plan to learn before this one, in as few steps."""
    other = asked(plan)
    return other and replace(other, training=plan.training)


def _checkpoint(method: str, **changes: Any) -> Victim:
    plan = Plan.of("toy-less-data", method, tasks=2, epochs=1, batch_size=150, **changes)

    def begun(path: Path) -> run.Run:
        with patch.object(run, "needed", _needed):
            return run.run_of(plan, BENCHMARKS["toy-less-data"], 0, path)

    def make(folder: Path) -> None:
        for progress in begun(folder.parent).learn(checkpoint_seconds=0):
            if (progress.task, progress.step) == (1, 1):
                break
        if folder.name != "checkpoint":
            (folder.parent / "checkpoint").rename(folder)

    def use(folder: Path) -> list[float]:
        with tempfile.TemporaryDirectory() as scratch:
            copy = shutil.copytree(folder.parent, Path(scratch) / "run")
            (copy / folder.name).rename(copy / "checkpoint")
            result = begun(copy).complete()
        return [accuracy for row in result.accuracy for accuracy in row or []]

    return Victim("run", make, use)


def _months() -> Victim:
    """The folder of `fromp learn`."""

    def file(folder: Path, number: int) -> Path:
        draw = np.random.default_rng(number)
        rows = [f"{a:.1f},{i:.0f},{'yes' if a > 50 else 'no'}" for a, i in draw.uniform((18, 1e6), (80, 9e6), (60, 2))]
        path = folder / f"month-{number}.csv"
        path.write_text("\n".join(["age,income,churn", *rows]))
        return path

    def make(folder: Path) -> None:
        learner = Learner(folder)
        learner.learn(file(folder.parent, 0), "churn", epochs=1, hidden=[4], memory_size=4, room=1)
        learner.learn(file(folder.parent, 1), tau=1.0)
        for path in folder.iterdir():
            if path.name != storage.MANIFEST and not storage.FILE.fullmatch(path.name):
                path.unlink()  # the report and the lock, which are not read

    def use(folder: Path) -> list[float]:
        learner = Learner(folder)
        learner.inspect()
        return [row["score"] for row in learner.evaluate().rows if row["score"] is not None]

    return Victim(KIND, make, use)


FEW: dict[str, dict[str, int]] = {
    "vcl-coreset": {"coreset_epochs": 1}, "vcl-memorable": {"coreset_epochs": 1}, "frcl-trace": {"search": 20}
}  # fmt: skip
VICTIMS = {
    "memory": _fromp(tasks_per_step=1),
    "memory with K = I": _fromp(kernel=IdentityKernel),
    "memory of two ranks": _of_ranks(),
    "memory of format 1": _of_first_format(),
    "memory of mixed past": _mixed(),
    "memory of a composed one": _composed(),
    "task-free": _without_tasks(),
    "months": _months(),
    **{f"checkpoint of {method}": _checkpoint(method, **FEW.get(method, {})) for method in METHODS},
    "checkpoint without tasks": _checkpoint("fromp", boundaries="calibrated", schedule="constant"),
    "checkpoint without tasks, Welch": _checkpoint("fromp", boundaries="welch", schedule="constant"),
    "checkpoint of relaxed, blocks": _checkpoint("fromp-relaxed", covariance="layers", across_tasks="true"),
    "checkpoint of relaxed, Kronecker": _checkpoint("fromp-relaxed", covariance="kronecker"),
}


def disturb(folder: Path, other: Path, chance: np.random.Generator) -> str:
    """Change the bytes of one file and leave the hashes: flipped, cut, lengthened, exchanged, emptied or removed."""
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    path = paths[chance.integers(len(paths))]
    data = bytearray(path.read_bytes())
    how = ("flip", "cut", "lengthen", "exchange", "remove", "zero")[chance.integers(6)]
    if how == "flip":
        for _ in range(chance.integers(1, 9)):
            data[chance.integers(len(data))] ^= 1 << int(chance.integers(8))
    elif how == "cut":
        del data[chance.integers(len(data)) :]
    elif how == "lengthen":
        data += chance.bytes(int(chance.integers(1, 64)))
    elif how == "exchange":
        role = path.name.split("-")[0]
        data = bytearray(next(p for p in sorted(other.iterdir()) if p.name.split("-")[0] == role).read_bytes())
    elif how == "zero":
        start = int(chance.integers(len(data)))
        data[start : start + 64] = bytes(min(64, len(data) - start))
    if how == "remove":
        path.unlink()
    else:
        path.write_bytes(data)
    return f"{how} {path.name.split('-')[0]}"


def rehashed(folder: Path, chance: np.random.Generator) -> str:
    """Flip bytes of the tensors or the state, and write the hashes that fit."""
    manifest = json.loads((folder / storage.MANIFEST).read_text())
    role = ("tensors", "state")[chance.integers(2)]
    entry = manifest["files"][role]
    path = folder / entry["name"]
    data = bytearray(path.read_bytes())
    for _ in range(chance.integers(1, 5)):
        data[chance.integers(len(data))] ^= 1 << int(chance.integers(8))
    path.unlink()
    digest = hashlib.sha256(data).hexdigest()
    manifest["files"][role] = {"name": f"{role}-{digest[:16]}{path.suffix}", "sha256": digest}
    (folder / manifest["files"][role]["name"]).write_bytes(data)
    (folder / storage.MANIFEST).write_text(json.dumps(manifest))
    return f"flip {role}, hashes fit"


def batch(name: str, numbers: range, scratch: Path, results: Any) -> None:
    """Change one victim in many ways and count what comes of it."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    victim, counts = VICTIMS[name], Counter[str]()
    findings: list[str] = []
    whole, other, work = (scratch / part / "folder" for part in ("whole", "other", "work"))
    for folder in (whole, other):
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            victim.make(folder)
    if not work.parent.exists():
        shutil.copytree(whole.parent, work.parent)  # with what is saved beside it
    state, expected = _state(whole, victim), victim.use(whole)
    saved = hashlib.sha256((whole / storage.MANIFEST).read_bytes()).hexdigest()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for number in numbers:
        chance = np.random.default_rng(number)
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(whole, work)
        stale = number % 2 == 0
        if stale:
            what = disturb(work, other, chance)
        elif number % 4 == 1:
            what = rehashed(work, chance)
        else:
            broken, what = damaged(state, number // 4)
            if broken is None:
                counts["not a state"] += 1
                continue
            storage.write(work, victim.kind, broken)
        try:
            values = victim.use(work)
        except FrompError:
            counts["refused"] += 1
            continue
        except Exception as error:
            counts["not ours"] += 1
            findings.append(f"{name}, {number}, {what}: {type(error).__name__}: {error}"[:300])
            continue
        counts["loaded"] += 1
        if stale and values != expected:
            findings.append(f"{name}, {number}, {what}: loaded with stale hashes, and otherwise than it was saved")
        if any(not math.isfinite(value) or value < -1e-6 for value in values):
            findings.append(f"{name}, {number}, {what}: penalties {values}")
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    if used > LARGEST:
        findings.append(f"{name}, {numbers}: {used / 2**20:.0f} MiB")
    assert hashlib.sha256((whole / storage.MANIFEST).read_bytes()).hexdigest() == saved
    results.put((dict(counts), findings, used))


def _state(folder: Path, victim: Victim) -> State:
    return storage.read(folder, victim.kind) if victim.format == storage.FORMAT else formats.read(folder)


def campaign(
    count: int, victims: Sequence[str] = tuple(VICTIMS), done: dict[str, Any] | None = None,
    after_batch: Callable[[dict[str, Any], list[str]], Any] = lambda found, findings: None,
) -> tuple[dict[str, Any], list[str]]:  # fmt: skip
    """`count` changes in all, always of the victim that has had fewest; what was counted, and what was found.

    done: what an earlier call has counted, from which this one goes on.
    """
    found: dict[str, Any] = {"victims": {}, "largest_growth_mib": 0, "findings": [], **(done or {})}
    counted, findings = {name: {} for name in victims} | found["victims"], found["findings"]
    with tempfile.TemporaryDirectory() as scratch:
        while (left := count - sum(_total(counts) for counts in counted.values())) > 0:
            name = min(victims, key=lambda name: _total(counted[name]))
            start, counts = _total(counted[name]), Counter(counted[name])
            numbers = range(start, start + min(BATCH, left))
            results = FORKED.Queue()
            process = FORKED.Process(target=batch, args=(name, numbers, Path(scratch) / name, results))
            process.start()
            while process.is_alive() and results.empty():
                process.join(0.05)
            if results.empty() and process.exitcode:
                findings.append(f"{name}, {numbers}: the process died with {process.exitcode}")
                counts["died"] += len(numbers)
            else:
                new, wrong, used = results.get(timeout=60)
                process.join()
                counts += Counter(new)
                findings += wrong
                found["largest_growth_mib"] = max(found["largest_growth_mib"], round(used / 2**20))
            counted[name] = dict(counts)
            after_batch(_summed(found, counted), findings)
            print(f"{name}: {counted[name]}, {len(findings)} findings so far", flush=True)
    return _summed(found, counted), findings


def _total(counts: Mapping[str, int]) -> int:
    return sum(counts.values())


def replay(done: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The changes that were findings again, each in its own process: what they were, and those that still are."""
    still, repaired = list[str](), list(done.get("repaired", []))
    with tempfile.TemporaryDirectory() as scratch:
        for finding in done["findings"]:
            name = next(name for name in sorted(VICTIMS, key=len, reverse=True) if finding.startswith(f"{name}, "))
            number = int(finding.removeprefix(f"{name}, ").split(",")[0])
            results = FORKED.Queue()
            numbers = range(number, number + 1)
            process = FORKED.Process(target=batch, args=(name, numbers, Path(scratch) / name, results))
            process.start()
            counts, wrong, _ = results.get(timeout=600)
            process.join()
            still += wrong
            repaired += [] if wrong else [f"{finding} -> {', '.join(counts)}"]
    return {**done, "repaired": repaired}, still


def _summed(found: dict[str, Any], counted: dict[str, dict[str, int]]) -> dict[str, Any]:
    kept_of: dict[str, Any] = {key: found[key] for key in ("largest_growth_mib", "repaired") if key in found}
    return {"changes": sum(map(_total, counted.values())), "victims": counted, **kept_of}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--replay", action="store_true", help="only the findings so far, in the code as it is now")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    done = kept(options.out)
    before = done.get("seconds", 0)
    if options.replay:
        found, findings = replay(done)
        return keep(options.out, {**found, "command": done["command"]}, findings, before=before)
    after_batch = partial(keep, options.out, quiet=True, before=before)
    found, findings = campaign(options.count, done=done, after_batch=after_batch)
    return keep(options.out, found, findings, before=before)


if __name__ == "__main__":
    sys.exit(main())
