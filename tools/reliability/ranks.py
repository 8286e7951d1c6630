"""A stream of tasks that several processes learn together over gloo, each task saved at its end; it can be killed."""

import multiprocessing
import tempfile
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from fromp import FROMP, Categorical
from fromp.foundation import storage

TASKS, STEPS, EXAMPLES = 4, 4, 48
WAITING = timedelta(seconds=60)  # for the other ranks


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def stream(folder: Path, rank: int, size: int) -> None:
    """Learn what is left of the stream, from the last task whose weights and memory are complete."""
    model = network()
    ddp = nn.parallel.DistributedDataParallel(model)
    done = sum((folder / str(task) / "memory" / storage.MANIFEST).exists() for task in range(TASKS))
    reg = FROMP(ddp, Categorical(), memory_size=6)
    if done:
        model.load_state_dict(storage.read(folder / str(done - 1) / "weights", "weights"))
        reg = FROMP.load(folder / str(done - 1) / "memory", ddp)
    for task in range(done, TASKS):
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        x = torch.randn(EXAMPLES, 4, generator=torch.Generator().manual_seed(task))
        y = (x[:, 0] + 0.3 * task > 0).long() + (x[:, 1] > 1).long()
        x, y = x[rank::size], y[rank::size]
        for _ in range(STEPS):
            optimizer.zero_grad()
            (F.cross_entropy(ddp(x), y) + reg.penalty()).backward()
            optimizer.step()
        reg.end_task((x, y))
        if rank == 0:
            storage.write(folder / str(task) / "weights", "weights", dict(model.state_dict()))
        reg.save(folder / str(task) / "memory")  # last: only then is the task complete


def _rank(folder: Path, rank: int, size: int, meeting: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=size, timeout=WAITING)
    stream(folder, rank, size)
    dist.destroy_process_group()


def begun(folder: Path, size: int, way: str = "spawn") -> list[BaseProcess]:
    """The processes that learn the stream in a folder, which have just begun."""
    folder.mkdir(parents=True, exist_ok=True)
    meeting = Path(tempfile.mkdtemp(dir=folder.parent)) / "meeting"
    context: Any = multiprocessing.get_context(way)
    ranks = [context.Process(target=_rank, args=(folder, rank, size, meeting)) for rank in range(size)]
    for process in ranks:
        process.start()
    return list(ranks)


def learned(folder: Path, size: int, way: str = "spawn") -> Path:
    """The folder of the last task, once the ranks have learned the stream without a pause."""
    for process in (ranks := begun(folder, size, way)):
        process.join()
    if any(process.exitcode for process in ranks):
        raise RuntimeError(f"the ranks ended with {[process.exitcode for process in ranks]}")
    return folder / str(TASKS - 1)
