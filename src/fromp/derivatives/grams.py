"""Gram matrices of per-example gradients, one for each output, within a memory budget."""

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from fromp.derivatives.budget import tiles
from fromp.derivatives.gradients import FORMED, Dense, Gradient, Outer, Rows, joined, outer_grams
from fromp.derivatives.last_layer import LastLayer, SlopeOf
from fromp.derivatives.model import Head, Weights
from fromp.derivatives.tape import Tape
from fromp.foundation import inputs
from fromp.foundation.inputs import Inputs

Span: TypeAlias = tuple[int, int] | None  # rows of a weight; None for the whole of it
Slopes: TypeAlias = Callable[[Tensor], Iterator[Tensor]]  # f: (b, c) -> a direction in the outputs for each output
DOUBLES = 4  # matrices in double precision that an output's kernel needs until it is inverted
SINGLE = 4  # bytes
MANY = 32  # outputs, from which finding the last layer's inputs, a pass over all examples, is little of the work


def grams(
    model: nn.Module,
    weights: Weights,
    x: Inputs,
    head: Head,
    slopes: Slopes,
    slope_of: SlopeOf,
    variance: Weights,
    memory_budget: int,
    sketch: int | None,
    lambdas: Callable[[int], int],
) -> Iterator[Tensor]:
    """sum_w g_icw v_w g_jcw for every output c, with g_c the gradient of slope c: some outputs at a time, (c', i, j).

    Each example's gradients are computed once. Where the examples do not fit in one tile, what is kept of them is their
    compact form, of as many weights and outputs at a time as the budget allows; or, with `sketch`, so many random
    combinations of the weights.
    """
    n = inputs.num_examples(x)
    parts = list(tiles(model, weights, x, head, memory_budget // 2, lambdas))
    if sketch and len(parts) > 1:  # gradients are written out for a tile
        largest = max(v.nbytes for v in variance.values())
        parts = list(inputs.split(x, min(inputs.num_examples(parts[0]), max(1, memory_budget // 4 // (2 * largest)))))
    tape = Tape(model, weights, parts[0], head)
    outputs, last = tape.f.shape[1], None
    if outputs >= MANY:
        others = (Tape(model, weights, part, head) for part in parts[1:])
        last = LastLayer.of(chain([tape], others), slope_of, variance)
    if last is not None:
        variance = {name: v for name, v in variance.items() if name not in last.names}
    at_a_time = max(1, memory_budget // 4 // (DOUBLES * 8 * n**2))
    portions = [range(start, min(outputs, start + at_a_time)) for start in range(0, outputs, at_a_time)]
    walk = Walk(model, weights, parts, head, slopes, variance)
    if len(parts) == 1:
        found = _of_one_tile(tape, portions, walk, memory_budget)
    elif sketch:
        found = (_sketched(walk, some, sketch, n, memory_budget) for some in portions)
    else:
        found = (_exact(walk, some, n, memory_budget) for some in portions)
    del tape
    for some in portions:
        yield _added(last, some, next(found))  # not held here while it is inverted


def between(
    left: Tape,
    right: Tape,
    directions: Iterator[tuple[Tensor, Tensor]],
    count: int,
    variance: Weights,
    memory_budget: int,
) -> Tensor:
    """The same between the examples of two tapes, for `count` pairs of directions at each of them: (c, i, j)."""
    total = torch.zeros(count, len(left.f), len(right.f), dtype=torch.double, device=left.f.device)
    waiting = _Outers(variance, total)
    for c, (at_left, at_right) in enumerate(directions):
        # One output at a time: the gradients of all of them at once would be classes times larger.
        g = dict(left.gradients(at_left))
        h = g if right is left else dict(right.gradients(at_right))
        for name in (name for name in g if name in h and name in variance):
            gi, hj = g[name], h[name]
            if isinstance(gi, Outer) and isinstance(hj, Outer):  # small enough to wait for other outputs
                waiting.add(name, c, gi, hj)
                continue
            if type(gi) is not type(hj):  # a layer that sees every example of one part, and some of the other
                gi, hj = gi.dense(), hj.dense()
            total[c] += gi.gram(hj, variance[name])
        waiting.release(least=memory_budget // 8)
    waiting.release()
    return total


class _Outers:
    """Gradients that wait for those of other outputs, which share their inputs; released before they are too many."""

    def __init__(self, variance: Weights, total: Tensor) -> None:
        self._variance, self._total = variance, total
        self._waiting: dict[str, list[tuple[int, Outer, Outer]]] = {}
        self._bytes = 0

    def add(self, name: str, c: int, left: Outer, right: Outer) -> None:
        self._waiting.setdefault(name, []).append((c, left, right))
        self._bytes += left.g.nbytes + (0 if right is left else right.g.nbytes)

    def release(self, least: int = 0) -> None:
        """Add what waits to the total, if it is that many bytes."""
        if self._bytes < least:
            return
        for name, found in self._waiting.items():
            places, left, right = (list(column) for column in zip(*found, strict=True))
            same = left[0] is right[0]
            self._total[places] += outer_grams(left, left if same else right, self._variance[name])
        self._waiting, self._bytes = {}, 0


@dataclass(frozen=True)
class Walk:
    """A model's examples in tiles, and the directions in which they are differentiated."""

    model: nn.Module
    weights: Weights
    parts: Sequence[Inputs]
    head: Head
    slopes: Slopes
    variance: Weights

    def gradients(self, outputs: set[int]) -> Iterator[tuple[int, slice, Iterator[tuple[str, Gradient]]]]:
        """Of each tile in turn, and of some outputs: which, whose, and the gradients of every weight."""
        start = 0
        for part in self.parts:
            tape = Tape(self.model, self.weights, part, self.head)
            own = slice(start, start + len(tape.f))
            start = own.stop
            for c, slope in enumerate(self.slopes(tape.f.detach())):
                if c in outputs:
                    yield c, own, tape.gradients(slope)


class Unit(NamedTuple):
    """Some rows of a weight, for one output: what is kept of all examples together."""

    output: int
    name: str
    rows: Span


def _of_one_tile(tape: Tape, portions: Sequence[range], walk: Walk, memory_budget: int) -> Iterator[Tensor]:
    each = walk.slopes(tape.f.detach())
    for some in portions:
        both = ((slope, slope) for slope in islice(each, len(some)))
        yield between(tape, tape, both, len(some), walk.variance, memory_budget)


def _added(last: LastLayer | None, outputs: range, total: Tensor) -> Tensor:
    if last is not None:
        last.add_grams(total, outputs)
    return total


def _exact(walk: Walk, outputs: range, n: int, memory_budget: int) -> Tensor:
    device = next(inputs.tensors(walk.parts[0])).device
    total = torch.zeros(len(outputs), n, n, dtype=torch.double, device=device)
    for units in _rounds(walk, outputs, n, memory_budget // 2):
        kept: dict[Unit, list[Gradient]] = {unit: [] for unit in units}
        of: dict[tuple[int, str], list[Unit]] = {}
        for unit in units:
            of.setdefault((unit.output, unit.name), []).append(unit)
        for c, own, gradients in walk.gradients({unit.output for unit in units}):
            untouched = {name for output, name in of if output == c}
            for name, g in gradients:
                untouched.discard(name)
                for unit in of.get((c, name), ()):
                    kept[unit].append(_compact(g, unit.rows))
            for name in untouched:
                for unit in of[c, name]:
                    like = _rows(walk.variance[name], unit.rows)
                    kept[unit].append(Dense(like.new_zeros(()).expand(own.stop - own.start, *like.shape)))
        waiting = _Outers(walk.variance, total)
        for unit in units:
            whole = joined(kept.pop(unit))
            if isinstance(whole, Outer):
                waiting.add(unit.name, outputs.index(unit.output), whole, whole)
            else:
                _add_gram(total[outputs.index(unit.output)], whole, _rows(walk.variance[unit.name], unit.rows))
        waiting.release()
    return total


def _add_gram(total: Tensor, g: Gradient, variance: Tensor) -> None:
    """total += sum_w g_iw v_w g_jw, in double precision over a few weights at a time."""
    if not isinstance(g, Dense):
        total += g.gram(g, variance)
        return
    written, v = g.g.flatten(1) if g.g.ndim > 1 else g.g[:, None], variance.flatten()
    step = max(1, FORMED // len(written))
    for start in range(0, len(v), step):
        some = Dense(written[:, start : start + step])
        total += some.gram(some, v[start : start + step])


def _compact(g: Gradient, rows: Span) -> Gradient:
    """In the form in which it is kept while other tiles are computed: patches under a kernel would be too many."""
    if rows is None:
        return g if isinstance(g, Outer | Rows) else g.dense()
    return Dense(g.dense().g[:, slice(*rows)].clone())


def _rows(weight: Tensor, rows: Span) -> Tensor:
    return weight if rows is None else weight[slice(*rows)]


def _rounds(walk: Walk, outputs: range, n: int, memory_budget: int) -> Iterator[list[Unit]]:
    """All that is to be computed, in portions that can be kept for n examples."""
    few = Tape(walk.model, walk.weights, inputs.take(walk.parts[0], slice(0, 2)), walk.head)
    sizes: dict[str, tuple[int, int]] = {}  # numbers that an example needs for each unit, and units
    limit = max(1, max(memory_budget // SINGLE, FORMED) // n)  # numbers per example
    for name, g in few.gradients(next(walk.slopes(few.f.detach()))):
        if name not in walk.variance:
            continue
        if isinstance(g, Outer):
            sizes[name] = g.g.shape[1] + g.a.shape[1], 1
        elif isinstance(g, Rows):
            sizes[name] = 2 * len(g.row) // g.b * g.g.shape[1], 1
        else:
            weight = walk.variance[name]
            sizes[name] = weight.numel(), min(-(-weight.numel() // limit), len(weight) if weight.ndim else 1)
    for name, weight in walk.variance.items():  # those that the first examples do not reach
        sizes.setdefault(name, (weight.numel(), 1))
    portion, size = [], 0
    for output in outputs:
        for name, (numbers, count) in sizes.items():
            rows = len(walk.variance[name]) if walk.variance[name].ndim else 1
            step = -(-rows // count)
            for start in range(0, rows, step):
                portion.append(Unit(output, name, None if count == 1 else (start, start + step)))
                size += numbers // count
                if size >= limit:
                    yield portion
                    portion, size = [], 0
    if portion:
        yield portion


def _sketched(walk: Walk, outputs: range, sketch: int, n: int, memory_budget: int) -> Tensor:
    """Phi Phi' with Phi = g sqrt(v) R, where R has one random sign per weight, so that E[R R'] = I."""
    at_a_time = max(1, memory_budget // 2 // (SINGLE * n * sketch))
    device = next(inputs.tensors(walk.parts[0])).device
    total = torch.zeros(len(outputs), n, n, dtype=torch.double, device=device)
    for start in range(outputs.start, outputs.stop, at_a_time):
        some = range(start, min(outputs.stop, start + at_a_time))
        phi: dict[int, Tensor] = {}
        for c, own, gradients in walk.gradients(set(some)):
            for name, g in gradients:
                if (v := walk.variance.get(name)) is None:
                    continue
                if c not in phi:
                    phi[c] = torch.zeros(n, sketch, dtype=v.dtype, device=v.device)
                signed = _signs(name, v) * v.sqrt()
                folded = _folded((g.dense().g * signed).reshape(own.stop - own.start, -1), sketch)
                phi[c][own] += folded.roll(zlib.crc32(name.encode()) % sketch, 1)  # small weights apart from each other
        for c, columns in phi.items():
            total[outputs.index(c)] = columns.double() @ columns.double().T
    return total


def _signs(name: str, like: Tensor) -> Tensor:
    """+1 or -1 at random for each number of a weight, the same whenever it is asked for."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return (torch.randint(0, 2, like.shape, generator=generator, dtype=torch.int8) * 2 - 1).to(like)


def _folded(g: Tensor, width: int) -> Tensor:
    """What stands at places that are equal modulo `width`, added up: (b, width)."""
    blocks = -(-g.shape[1] // width)
    return torch.nn.functional.pad(g, (0, blocks * width - g.shape[1])).view(len(g), blocks, width).sum(1)
