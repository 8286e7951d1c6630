"""Ways to a step whose cost does not grow with the number of past tasks, to be measured by `fromp.lab.bench.level`."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from fromp.composed import Composed
from fromp.contexts.remembered import Remembered
from fromp.holding import Hold
from fromp.lab.methods.fromp import CARD
from fromp.lab.methods.rehearsal import DERpp
from fromp.lab.results.plan import Plan
from fromp.likelihoods import Categorical
from fromp.metrics.full_kernel import FullKernel
from fromp.metrics.logits import Logits
from fromp.mixed_past import MixedPast
from fromp.prior import Anchor
from fromp.protocol import no_penalty
from fromp.regulariser import FROMP

POINTS, BATCH = 50, 32
PLAN = Plan.of("permuted-digits", CARD.name).flat()
DER = {name: Plan.of("permuted-mnist", "der++").flat()[name] for name in ("strength", "logit_strength")}


class Held(Protocol):
    """What a loop needs of a regulariser."""

    def penalty(self) -> Tensor: ...
    def end_task(self, data: Any) -> None: ...


def fromp(model: nn.Module, **changes: Any) -> FROMP:
    """FROMP with the preset of the benchmark, and some settings changed."""
    own: dict[str, Any] = {name: PLAN[name] for name in ("tau", "prior_precision", "jitter")} | changes
    return FROMP(model, Categorical(), memory_size=POINTS, **own)


class Drawn:
    """Points drawn within every task, in turns: `BATCH` of them per step over all tasks, scaled up to all points.

    own_kernels: whether the kernel is that of the drawn points (S-FSVI's way), which is inverted in each step, or that
    of all points, of which those that are not drawn keep the deviation that they had when they last were.
    """

    def __init__(self, reg: FROMP, own_kernels: bool) -> None:
        self._reg, self._own_kernels = reg, own_kernels
        self._generator = torch.Generator().manual_seed(0)

    def end_task(self, data: Any) -> None:
        self._reg.end_task(data)
        anchors = self._reg._anchors()
        self._x = torch.stack([a.memory.inputs for a in anchors])  # type: ignore[misc]
        self._mean = torch.stack([a.mean for a in anchors])
        self._inverse = torch.cat([a.kernel.inverse for a in anchors if isinstance(a.kernel, FullKernel)])
        self._kernel = torch.linalg.inv(self._inverse.double()) if self._own_kernels else self._inverse
        self._d, self._u = torch.zeros_like(self._mean), torch.zeros_like(self._mean)
        self._order = torch.empty(len(anchors), 0, dtype=torch.long)

    def penalty(self) -> Tensor:
        if not self._reg.memories:
            return no_penalty(self._reg.model)
        t, c, i = self._mean.shape
        k = max(1, BATCH // t)
        if self._order.shape[1] < k:
            self._order = torch.rand(t, i, generator=self._generator).argsort(1)
        drawn, self._order = self._order[:, :k], self._order[:, k:]
        m = self._reg.likelihood.mean(self._reg.model(self._x[torch.arange(t)[:, None], drawn].flatten(0, 1)))
        places = drawn[:, None].expand(t, c, k)
        d = m.view(t, k, c).mT - self._mean.gather(2, places)
        rows = self._kernel.gather(2, drawn[:, None, :, None].expand(t, c, k, i))
        if self._own_kernels:
            factor = torch.linalg.cholesky(rows.gather(3, drawn[:, None, None].expand(t, c, k, k))).to(d.dtype)
            distance = torch.linalg.solve_triangular(factor, d[..., None], upper=False).square().sum()
            return 0.5 * self._reg.tau * i / k * distance
        with torch.no_grad():
            self._u += torch.einsum("tcki,tck->tci", rows, d - self._d.gather(2, places))
            self._d.scatter_(2, places, d.detach())
        return self._reg.tau * i / k * (self._u.gather(2, places) * d).sum()


class DiagonalForOthers:
    """Two whole tasks per step; for the others, the quadratic with the diagonal of J' K^-1 J around their last fit.

    control: whether it is a control variate: the quadratics of all tasks, and by how much the drawn tasks differ from
    theirs, scaled up. Otherwise the drawn tasks count once, and the quadratics are those of the others.
    """

    def __init__(self, reg: FROMP, control: bool) -> None:
        self._reg, self._control = reg, control

    def end_task(self, data: Any) -> None:
        self._reg.end_task(data)
        self._then = _flat(self._reg.model).detach()
        self._h = torch.stack([_curvature(self._reg, anchor) for anchor in self._reg._anchors()])

    def penalty(self) -> Tensor:
        prior, tasks = self._reg._prior, len(self._reg.memories)
        if prior is None or tasks <= 2:
            return self._reg.penalty()
        drawn = self._reg._draw(tasks, 2)
        moved = (_flat(self._reg.model) - self._then).square()
        whole, own = self._h.sum(0) @ moved, self._h[drawn].sum(0) @ moved
        exact = prior.squared_distance(self._reg.model, drawn)
        distance = whole + tasks / 2 * (exact - own) if self._control else exact + (whole - own)
        return 0.5 * self._reg.tau * distance


class EveryFourth:
    """The whole penalty at every fourth step, four times as strong."""

    def __init__(self, reg: FROMP) -> None:
        self._reg, self._step, self.end_task = reg, 0, reg.end_task

    def penalty(self) -> Tensor:
        self._step += 1
        return no_penalty(self._reg.model) if self._step % 4 else 4 * self._reg.penalty()


def _flat(model: nn.Module) -> Tensor:
    """All weights in a row."""
    return torch.cat([weight.flatten() for weight in model.parameters()])


def _curvature(reg: FROMP, anchor: Anchor) -> Tensor:
    """The diagonal of sum_c J_c' K_c^-1 J_c, J that of the means at a task's memory: (weights,)."""
    weights = {name: weight.detach() for name, weight in reg.model.named_parameters()}

    def mean(weights: dict[str, Tensor], z: Tensor) -> Tensor:
        return reg.likelihood.mean(functional_call(reg.model, weights, (z[None],)))[0]

    j = torch.cat([of.flatten(2) for of in vmap(jacrev(mean), (None, 0))(weights, anchor.memory.inputs).values()], 2)
    assert isinstance(anchor.kernel, FullKernel)
    return torch.stack(
        [(k @ own * own).sum(0) for k, own in zip(anchor.kernel.inverse[0], j.unbind(1), strict=True)]
    ).sum(0)


WAYS: dict[str, tuple[bool, Callable[[nn.Module], Held] | None]] = {  # whether its gradient is clipped, as FROMP's is
    "plain training": (False, None),
    "all points": (True, fromp),
    "two tasks per step": (True, partial(fromp, tasks_per_step=2)),
    "two tasks per step, a diagonal as control variate": (True, lambda model: DiagonalForOthers(fromp(model), True)),
    "two tasks per step, a diagonal for the others": (True, lambda model: DiagonalForOthers(fromp(model), False)),
    "points of every task, their own kernel": (True, lambda model: Drawn(fromp(model), True)),
    "points of every task, deviations remembered": (True, lambda model: Drawn(fromp(model), False)),
    "every fourth step, times four": (True, lambda model: EveryFourth(fromp(model))),
    "`Composed`: remembered points, logits": (
        False, lambda m: Composed(m, Categorical(), [Hold(Remembered(BATCH), Logits(), 0.03)], POINTS)
    ),
    "DER++": (False, lambda m: DERpp(m, Categorical(), POINTS, BATCH, **DER, seed=0)),
    "`MixedPast`": (
        False, lambda m: MixedPast(m, Categorical(), POINTS, 0.03, 0.02, points_per_step=BATCH, metric=Logits())
    ),
}  # fmt: skip
