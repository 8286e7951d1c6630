"""NaN or infinity at every tensor of `end_task` and of a penalty: our error that says where, and nothing has changed.

cd tools && python -m reliability.poison --out ../results/reliability/poison.json

A dispatch mode counts the operations and spoils one element of the result of one of them. `end_task` must then end with
our error and leave the state as it was, or not be touched by it; no state may ever hold a number that is not finite.
A penalty may be NaN where the model's outputs are, but it never changes the state.
"""

import argparse
import itertools
import math
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from fromp import FROMP, Categorical, FrompError, IdentityKernel, MixedPast, Regulariser, SignGGN
from fromp.foundation.state import State, flatten
from reliability.report import keep, kept

KEPT = (
    "detach", "view", "alias", "empty", "t.default", "transpose", "expand", "slice", "select", "as_strided", "permute",
    "_unsafe_view", "squeeze", "unsqueeze",
)  # fmt: skip


WHERE = re.compile(r"task \d|example \d|input \d|output \d|'[^']+'|kernel|score|means")  # what an error has to name


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


def taught(name: str) -> tuple[Regulariser, State]:
    """A regulariser after a task whose model has moved since, and its state, to which it is brought back."""
    reg = regularisers()[name](network())
    reg.end_task(data())
    with torch.no_grad():
        for weight in reg.model.parameters():
            weight.mul_(1.1)
    reg.penalty()
    return reg, reg.state_dict()


def spoiled(reg: Regulariser, state: State, phase: str, mode: Spoiled) -> tuple[str, str]:
    """What comes of one operation that is spoiled: refused, went on or not reached; and what should not have been."""
    reg.load_state_dict(state)
    reg.model.zero_grad()
    task, before = data(), snapshot(reg)
    try:
        with mode:
            if phase == "end_task":
                reg.end_task(task)
            else:
                reg.penalty().backward()
    except FrompError as error:
        if snapshot(reg) != before:
            return "refused", "refused, and the state has changed"
        return "refused", "" if WHERE.search(str(error)) else f"does not say where: {error}"
    except Exception as error:
        return "refused", f"{type(error).__name__}: {error}"
    if not finite(reg):
        return "went on", "the state is not finite"
    if phase == "penalty" and not isinstance(reg, MixedPast) and snapshot(reg) != before:
        return "went on", "the penalty has changed the state"
    return "went on" if mode.operation else "not reached", ""


def weights_spoiled(name: str, value: float) -> tuple[Counter[str], list[str]]:
    """Every weight of the model in turn with a value in it, and the minibatch: what the penalty then is."""
    counts, findings = Counter[str](), []
    reg, state = taught(name)
    parts = [*reg.model.named_parameters(), *([("the minibatch", None)] if isinstance(reg, MixedPast) else [])]
    for part, weight in parts:
        reg.load_state_dict(state)
        before, x = snapshot(reg), data()[0]
        spot = x if weight is None else weight
        old = spot.detach().clone()
        with torch.no_grad():
            spot[(0,) * spot.ndim] = value
        try:
            penalty = reg.penalty(x, [0, 1]) if isinstance(reg, MixedPast) else reg.penalty()
            counts["finite" if math.isfinite(penalty.item()) else "went on"] += 1
        except FrompError:
            counts["refused"] += 1
        except Exception as error:
            findings.append(f"{name}, penalty, {value} in {part}: {type(error).__name__}: {error}"[:300])
        with torch.no_grad():
            spot.copy_(old)
        if not isinstance(reg, MixedPast) and snapshot(reg) != before:
            findings.append(f"{name}, penalty, {value} in {part}: the penalty has changed the state")
    return counts, findings


def campaign(
    names: Sequence[str] = tuple(regularisers()), every: int = 1, seconds: float = math.inf,
    done: dict[str, Any] | None = None, after_pass: Callable[[dict[str, Any], list[str]], Any] = lambda *_: None,
) -> tuple[dict[str, Any], list[str]]:  # fmt: skip
    """Spoil every operation in as many passes as `every`, each with others, while there is time; what came of it."""
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {"operations": {}, "passes": 0, "of_passes": every, **(done or {})}
    findings, stop = list(found.pop("findings", [])), time.monotonic() + seconds
    start = found["passes"] if found["of_passes"] == every else 0
    for first in range(start, every):
        for name in names:
            reg, state = taught(name)
            for phase in ("end_task", "penalty"):
                count = Counter(found["operations"].get(f"{name}, {phase}", {}) if first else {})
                for value in (math.nan, math.inf):
                    for target in itertools.count(first, every):
                        mode = Spoiled(target, value)
                        came, wrong = spoiled(reg, state, phase, mode)
                        if came == "not reached":
                            break
                        count[came] += 1
                        if wrong:
                            what = f"{name}, {phase}, {value} in operation {target} ({mode.operation})"
                            findings.append(f"{what}: {wrong}"[:300])
                found["operations"][f"{name}, {phase}"] = dict(count)
            if first == 0:
                counts, wrongs = Counter[str](), list[str]()
                for value in (math.nan, math.inf):
                    of, wrong_of = weights_spoiled(name, value)
                    counts, wrongs = counts + of, wrongs + wrong_of
                found["operations"][f"{name}, weights of a penalty"] = dict(counts)
                findings += wrongs
        found |= {"passes": first + 1, "of_passes": every}
        after_pass(found, findings)
        print(f"pass {first + 1} of {every}: {found['operations']}, {len(findings)} findings so far", flush=True)
        if time.monotonic() > stop:
            break
    return found, findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--every", type=int, default=29, help="passes over the operations, each with others")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no new pass is begun after these")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    done = kept(options.out)
    done = done if "passes" in done else {}
    before, keys = done.get("seconds", 0), ("operations", "passes", "of_passes", "findings")
    done = {key: done[key] for key in keys if key in done}
    after_pass = partial(keep, options.out, quiet=True, before=before)
    found, findings = campaign(every=options.every, seconds=options.seconds, done=done, after_pass=after_pass)
    return keep(options.out, found, findings, before=before)


if __name__ == "__main__":
    sys.exit(main())
