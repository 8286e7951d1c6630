"""One stream, learned by one process or by the ranks of `torchrun tests/oracles/ranks.py FOLDER SCENARIO...`."""

import os
import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from fromp import FROMP, Categorical, Composed, DataWide, FrompError, Hold, MixedPast, Remembered, random_score
from fromp.foundation import storage
from fromp.foundation.state import State
from fromp.protocol import penalty_at

HEADS = [(0, 1), (2, 3), (0, 3, 1)]  # of two sizes, so that the penalty has two blocks
N = 42


def network(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 4)).to(dtype)


def task(k: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(k)
    y = torch.arange(N) % 2
    return (torch.randn(N, 3, generator=generator) + torch.stack([y, -y, y + k], 1)).to(dtype), y


def regulariser(model: nn.Module, **options) -> FROMP:
    return FROMP(model, Categorical(), tau=2.0, memory_size=9, prior_precision=0.1, jitter=1e-3, **options)


def mixed(model: nn.Module, points: int) -> MixedPast:
    return MixedPast(model, Categorical(), 9, 0.7, 0.5, label_strength=0.3, weight_strength=0.2, points_per_step=points)


KINDS = {
    "memorable": regulariser,
    "random": partial(regulariser, score=random_score),
    "some": partial(regulariser, tasks_per_step=2),
    "mixed": partial(mixed, points=13),  # which neither two nor four ranks share evenly
    "few": partial(mixed, points=3),  # fewer than four ranks
    "tied": lambda model: Composed(model, Categorical(), [Hold(Remembered(), DataWide(), 0.6)], 9),
}
STREAMS = ["memorable", "mixed"]  # kinds that learn a whole stream
COPIED = {"mixed", "few", "tied"}  # kinds that keep a copy of the network


def move(model: nn.Module) -> None:
    with torch.no_grad():
        for p in model.parameters():
            step = 0.05 * torch.sin(torch.arange(p.numel(), dtype=p.dtype)).view(p.shape)
            p += distribute_tensor(step, p.device_mesh, p.placements) if isinstance(p, DTensor) else step


def rows(rank: int, size: int) -> slice:
    """Parts of different sizes."""
    cuts = [0, *(N * (k + 1) ** 2 // size**2 for k in range(size))]
    return slice(cuts[rank], cuts[rank + 1])


def states(wrap, rank: int, size: int, ending, kinds=frozenset(KINDS)) -> State:
    """What is held after each of three tasks, and the gradient of the loss at other weights, in double precision."""
    found: State = {}
    for name in sorted(kinds):
        model = network(torch.float64)
        ddp = wrap(model)
        reg = KINDS[name](ddp)
        for k, head in enumerate(HEADS):
            ending(reg, task(k, torch.float64), head, rank, size)
            move(model)
        x, y = task(7, torch.float64)
        part = torch.arange(40).view(size, -1)[rank]
        model.eval()
        if rank == 0 and wrap is not split:
            with torch.no_grad():
                penalty_at(reg, x.clone)  # asked for on one rank alone
        penalty = penalty_at(reg, partial(x.__getitem__, part), (0, 1))
        (F.cross_entropy(ddp(x)[part], y[part]) + penalty).backward()
        found[name] = {
            "state": reg.state_dict(),
            "penalty": penalty.detach(),
            "gradient": {name: p.grad for name, p in model.named_parameters()},
        }
    return found


def whole_tensors(reg: FROMP, data, head, rank: int, size: int) -> None:
    x, y = data
    reg.end_task((x[rows(rank, size)], y[rows(rank, size)]), head)


def sampled(reg: FROMP, data, head, rank: int, size: int) -> None:
    dataset = TensorDataset(*data)
    sampler = DistributedSampler(dataset, size, rank, shuffle=True, seed=5)  # 42 of 4 ranks: two come twice
    reg.end_task(DataLoader(dataset, 5, sampler=sampler), head)


def stream(wrap, kind: str, rank: int, size: int, folder: Path, epochs: int = 8) -> State:
    """Three tasks in single precision, each step on the same minibatch however many ranks share it."""
    model = network(torch.float32).eval()
    ddp = wrap(model)
    reg = KINDS[kind](ddp)
    first = 0
    if (folder / "reg").exists():
        reg = type(reg).load(folder / "reg", ddp)
        model.load_state_dict(storage.read(folder / "model", "weights"))
        first = len(reg.memories)
    for k in range(first, len(HEADS)):
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        x, y = task(k, torch.float32)
        for step in range(epochs):
            batch = torch.arange(step % 3, step % 3 + 24).view(size, -1)[rank]
            optimizer.zero_grad()
            penalty = penalty_at(reg, partial(x.__getitem__, batch), HEADS[k])
            (F.cross_entropy(ddp(x[batch])[:, HEADS[k]], y[batch]) + penalty).backward()
            optimizer.step()
        reg.end_task((x[rows(rank, size)], y[rows(rank, size)]), HEADS[k])
        if rank == 0:
            storage.write(folder / "model", "weights", dict(model.state_dict()))
        reg.save(folder / "reg")
        if os.environ.get("KILLED_AFTER") == str(k):
            if torch.distributed.is_initialized():
                torch.distributed.barrier()  # rank 0 has written the weights and the memory that belong together
            os.kill(os.getpid(), 9)
    return {"model": dict(model.state_dict()), "state": reg.state_dict()}


def mistakes(wrap, rank: int, size: int) -> State:
    """What each rank is told when one of them, or all, go wrong; nothing has changed, and none waits for ever."""
    told: State = {}
    model = network(torch.float32)
    reg = regulariser(wrap(model))
    x, y = task(0, torch.float32)
    mine = rows(rank, size)

    def tell(name: str, *args, of: FROMP = reg) -> None:
        try:
            of.end_task(*args)
        except FrompError as error:
            told[name] = [type(error).__name__, str(error)]

    bad = x.clone()
    bad[-1, 0] = torch.nan
    tell("nan on the last rank", (bad[mine], y[mine]), (0, 1))
    tell("labels on the last rank", (x[mine], y[mine] + (rank == size - 1) * 5), (0, 1))
    some = slice(0, 0 if rank == size - 1 else None)
    tell("nothing on the last rank", (x[mine][some], y[mine][some]), (0, 1))
    tell("the whole task on each", (x, y), (0, 1))
    tell("another head on each", (x[mine], y[mine]), (0, 1) if rank else (2, 3))
    apart = network(torch.float32)
    with torch.no_grad():
        next(apart.parameters()).add_(rank)
    tell("another model on each", (x[mine], y[mine]), (0, 1), of=regulariser(apart))
    parallel = network(torch.float32)
    first, mesh = parallel[0], init_device_mesh("cpu", (size,))
    first.weight = nn.Parameter(distribute_tensor(first.weight.detach(), mesh, [Shard(0)]))
    tell("weights split by a layer", (x[mine], y[mine]), (0, 1), of=regulariser(parallel))
    tell("a copy of split weights", (x[mine], y[mine]), (0, 1), of=mixed(split(network(torch.float32)), 4))
    told["tasks"] = len(reg.memories)
    reg.end_task((x[mine], y[mine]), (0, 1))
    move(model)
    with torch.no_grad():
        value = reg.penalty() if rank == 0 else None  # asked for on one rank alone
    penalty = reg.penalty()
    if value is not None:
        assert torch.isclose(value, penalty)
    try:
        torch.autograd.grad(reg.penalty(), [next(model.parameters())], create_graph=True)
    except FrompError as error:
        told["second derivatives"] = [type(error).__name__, str(error)]
    return told


def split(model: nn.Module) -> nn.Module:
    """Each linear layer split over the ranks by FSDP2."""
    for part in model:
        if isinstance(part, nn.Linear):
            fully_shard(part)
    return fully_shard(model)


def gathered_gradients(found: State) -> State:
    for of in found.values():
        of["gradient"] = {name: gradient.full_tensor() for name, gradient in of["gradient"].items()}
    return found


def averaged(found: State, size: int) -> State:
    """With gradients averaged by hand, as where the model has no wrapper."""
    for of in found.values():
        for gradient in of["gradient"].values():
            dist.all_reduce(gradient)
            gradient /= size
    return found


def main() -> None:
    folder, scenarios = Path(sys.argv[1]), sys.argv[2:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    wrap = nn.parallel.DistributedDataParallel
    known = {
        "tensors": lambda: states(wrap, rank, size, whole_tensors),
        "sampler": lambda: states(wrap, rank, size, sampled),
        "plain": lambda: averaged(states(lambda model: model, rank, size, whole_tensors), size),
        "split": lambda: gathered_gradients(states(split, rank, size, whole_tensors, KINDS.keys() - COPIED)),
        **{kind: partial(stream, wrap, kind, rank, size, folder) for kind in STREAMS},
        "mistakes": lambda: mistakes(wrap, rank, size),
    }
    for scenario in scenarios:
        storage.write(folder / scenario / str(rank), scenario, known[scenario]())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
