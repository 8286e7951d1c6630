"""Many tiny tasks in one process: nothing grows but the memory itself, and of tasks that are forgotten nothing stays.

cd tools && python -m reliability.lives --tasks 1000 --out ../results/reliability/lives.json
"""

import argparse
import gc
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fromp import FROMP, Categorical, never
from fromp.foundation.state import flatten
from reliability.report import keep


def living() -> int:
    """How many tensors there are in the process."""
    gc.collect()
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())


def resident() -> int:
    """Bytes of the process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def campaign(tasks: int) -> tuple[dict[str, Any], list[str]]:
    """Learn them, look at the process now and then, and forget them."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    reg = FROMP(model, Categorical(), memory_size=2, refresh=never, tasks_per_step=10)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    findings: list[str] = []
    rows: list[dict[str, Any]] = []
    every = max(1, tasks // 10)
    for task in range(tasks):
        x, y = torch.randn(10, 4) + task % 7, torch.arange(10) % 2
        optimizer.zero_grad()
        (nn.functional.cross_entropy(model(x), y) + reg.penalty()).backward()
        optimizer.step()
        start = time.process_time()
        reg.end_task((x, y))
        taken = time.process_time() - start
        if task == 0:
            files = len(os.listdir("/proc/self/fd"))
        if (task + 1) % every == 0:
            kept, _ = flatten(reg.state_dict())
            held = sum(value.nbytes for value in kept.values())
            rows.append(
                {
                    "tasks": task + 1, "held_bytes": held, "resident_bytes": resident(), "tensors": living(),
                    "end_task_seconds": round(taken, 4),
                }
            )  # fmt: skip
            del kept
            print(rows[-1], flush=True)
    first, last = rows[2], rows[-1]  # at first the interpreter and the allocator grow
    per_task = (last["tensors"] - first["tensors"]) / max(1, last["tasks"] - first["tasks"])
    growth = (last["resident_bytes"] - first["resident_bytes"]) / max(1, last["tasks"] - first["tasks"])
    if per_task > 20:
        findings.append(f"{per_task:.1f} tensors stay per task")
    if growth > 64 * 1024:
        findings.append(
            f"{growth / 1024:.0f} KiB stay per task, whose memory takes {last['held_bytes'] / tasks:.0f} bytes"
        )
    if (more := len(os.listdir("/proc/self/fd")) - files) > 0:
        findings.append(f"{more} files stay open")
    before = rows[-2]
    for task in reversed(range(before["tasks"], last["tasks"])):
        reg.forget(task)
    if (left := living()) > before["tensors"] + 5:
        findings.append(f"{left - before['tensors']} tensors are left of {every} tasks that were forgotten")
    found = {
        "tasks": tasks, "tensors_per_task": round(per_task, 1), "resident_bytes_per_task": round(growth),
        "tensors_after_forgetting_a_tenth": left, "rows": rows,
    }  # fmt: skip
    return found, findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    return keep(options.out, *campaign(options.tasks))


if __name__ == "__main__":
    sys.exit(main())
