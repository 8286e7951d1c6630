"""Gradients of the authors' released code on three small networks, kept in `released_gradients.safetensors`.

    python tools/released_gradients.py FOLDER   # a clone of the released code; writes the file anew

The cases are built from sines, so that they are the same on every machine and with every version.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

FILE = Path(__file__).parent.parent / "tests" / "oracles" / "released_gradients.safetensors"
TAU, PRIOR_PRECISION, JITTER = 0.5, 1e-2, 1e-4
PAST = 2


def wave(*shape: int, phase: float) -> Tensor:
    n = torch.Size(shape).numel()
    return torch.sin(torch.arange(n, dtype=torch.double) * 1.7 + phase).reshape(shape)


def fill(model: nn.Module, phase: float) -> nn.Module:
    """Weights as waves, large enough that nothing is dead."""
    with torch.no_grad():
        for k, p in enumerate(model.parameters()):
            p.copy_(wave(*p.shape, phase=phase + k) / p[0].numel() ** 0.5)
    return model


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 4)).double()


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 3, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 4),
    ).double()  # fmt: skip


CASES: dict[str, Any] = {
    "mlp": (mlp, (6,), [None, None, None]),
    "multi-head": (mlp, (6,), [[0, 1], [2, 3], [1, 2]]),
    "cnn": (cnn, (2, 6, 6), [[0, 1], [2, 3], [1, 2]]),
}


def task_data(shape: tuple[int, ...], s: int, outputs: int) -> tuple[Tensor, Tensor]:
    """Eight inputs of task s, all of which are memory, with labels in the order that keeps them together."""
    return wave(8, *shape, phase=10.0 * s), torch.arange(8) * outputs // 8


def at_task_end(model: nn.Module, s: int) -> None:
    """The weights after task s."""
    fill(model, phase=0.5 * s)


def _released_gradient(name: str) -> Tensor:
    opt_fromp: Any = importlib.import_module("opt_fromp")

    class Seen(Exception):
        pass

    def see(gradient: Tensor) -> Tensor:
        raise Seen(gradient.clone())

    build, shape, heads = CASES[name]
    model = build()
    at_task_end(model, 0)
    optimizer = opt_fromp.opt_fromp(model, prior_prec=PRIOR_PRECISION, grad_clip_norm=1.0, tau=TAU)
    full = list(range(4))

    def outputs(s: int) -> Tensor:
        return model(task_data(shape, s, len(heads[s] or full))[0])[:, heads[s] or full]

    for s in range(PAST):
        at_task_end(model, s)
        optimizer.update_mu()
        model.eval()
        optimizer.update_fisher(lambda s=s: outputs(s))
    optimizer.init_task(outputs, PAST, eps=JITTER)
    at_task_end(model, PAST)
    optimizer.update_mu()

    def current() -> tuple[Tensor, Tensor]:
        optimizer.zero_grad()
        f = outputs(PAST)
        y = task_data(shape, PAST, f.shape[1])[1]
        return nn.functional.cross_entropy(f, y), f

    torch.norm = see  # type: ignore[assignment]  # the first thing done to the gradient before Adam sees it
    try:
        optimizer.step(current, outputs, PAST)
    except Seen as seen:
        return seen.args[0]
    raise AssertionError("the released code did not clip its gradient")


if __name__ == "__main__":
    from safetensors.torch import save_file

    sys.path.insert(0, sys.argv[1])
    torch.cholesky = torch.linalg.cholesky  # its name when that code was written
    torch.set_default_dtype(torch.double)
    save_file({name: _released_gradient(name) for name in CASES}, FILE)
    print(f"wrote {FILE}")
