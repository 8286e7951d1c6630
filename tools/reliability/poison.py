"""NaN or infinity at every tensor of `end_task` and of a penalty: our error that says where, and nothing has changed.

cd tools && python -m reliability.poison --out ../results/reliability/poison.json

A dispatch mode counts the operations and spoils one element of the result of one of them. `end_task` must then end with
our error and leave the state as it was, or not be touched by it; no state may ever hold a number that is not finite.
A penalty may be NaN where the model's outputs are, but it never changes the state.
"""

import argparse
import math
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from fromp import FROMP, Categorical, FrompError, IdentityKernel, MixedPast, Regulariser, SignGGN
from fromp.foundation.state import flatten
from reliability.report import keep

KEPT = (
    "detach", "view", "alias", "empty", "t.default", "transpose", "expand", "slice", "select", "as_strided", "permute",
    "_unsafe_view", "squeeze", "unsqueeze",
)  # fmt: skip


class Spoiled(TorchDispatchMode):
    """Operation number `target` gives a value in its first element; what else there is goes as it does.

    Only single precision, which the model has: the draws are in double precision, and cannot be NaN."""

    def __init__(self, target: int, value: float) -> None:
        super().__init__()
        self.target, self.value, self.count = target, value, 0
        self.operation = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = str(func).removeprefix("aten.")
        if any(name.startswith(kept) for kept in KEPT):
            return out  # shares its memory with an input, or has no values yet

        def spoil(value: Any) -> Any:
            if not isinstance(value, Tensor) or value.dtype != torch.float32 or value.numel() == 0:
                return value
            self.count += 1
            if self.count - 1 == self.target:
                self.operation = name
                value[(0,) * value.ndim] = self.value
            return value

        return tree_map(spoil, out)


def regularisers() -> dict[str, Callable[[nn.Module], Regulariser]]:
    return {
        "FROMP": lambda model: FROMP(model, Categorical(), memory_size=6),
        "FROMP, K = I": lambda model: FROMP(model, Categorical(), memory_size=6, kernel=IdentityKernel),
        "FROMP, random signs": lambda model: FROMP(model, Categorical(), memory_size=6, curvature=SignGGN()),
        "MixedPast": lambda model: MixedPast(model, Categorical(), 6, weight_strength=1.0, label_strength=1.0),
    }


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3))


def data() -> tuple[Tensor, Tensor]:
    return torch.randn(30, 4), torch.arange(30) % 3


def snapshot(reg: Regulariser) -> tuple[dict[str, bytes], Any]:
    tensors, tree = flatten(reg.state_dict())
    return {name: value.contiguous().numpy().tobytes() for name, value in tensors.items()}, tree


def finite(reg: Regulariser) -> bool:
    tensors, _ = flatten(reg.state_dict())
    return all(bool(torch.isfinite(value).all()) for value in tensors.values() if value.is_floating_point())


def campaign(names: tuple[str, ...] = tuple(regularisers()), every: int = 1) -> tuple[dict[str, Any], list[str]]:
    """Spoil every operation, or some; what came of it, and what should not have."""
    warnings.simplefilter("ignore")
    counts: dict[str, Counter[str]] = {}
    findings = []
    for name in names:
        for phase in ("end_task", "penalty"):
            counts[f"{name}, {phase}"] = count = Counter[str]()
            for value in (math.nan, math.inf):
                target, reached = 0, True
                while reached:
                    model = network()
                    reg = regularisers()[name](model)
                    reg.end_task(data())
                    with torch.no_grad():
                        for weight in model.parameters():
                            weight.mul_(1.1)
                    reg.penalty()
                    task, before = data(), snapshot(reg)
                    mode = Spoiled(target, value)
                    what = f"{name}, {phase}, {value} in operation {target}"
                    try:
                        with mode:
                            if phase == "end_task":
                                reg.end_task(task)
                            else:
                                reg.penalty().backward()
                        count["went on"] += mode.operation != ""
                        if not finite(reg):
                            findings.append(f"{what} ({mode.operation}): the state is not finite")
                        if phase == "penalty" and name != "MixedPast" and snapshot(reg) != before:
                            findings.append(f"{what} ({mode.operation}): the penalty has changed the state")
                    except FrompError as error:
                        count["refused"] += 1
                        if snapshot(reg) != before:
                            findings.append(f"{what} ({mode.operation}): refused, and the state has changed")
                        if not str(error).strip():
                            findings.append(f"{what} ({mode.operation}): says nothing")
                    except Exception as error:
                        findings.append(f"{what} ({mode.operation}): {type(error).__name__}: {error}"[:300])
                    reached = mode.operation != ""
                    target += every
            print(f"{name}, {phase}: {dict(count)}, {len(findings)} findings so far", flush=True)
    return {"operations": {name: dict(count) for name, count in counts.items()}}, findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    return keep(options.out, *campaign(every=options.every))


if __name__ == "__main__":
    sys.exit(main())
