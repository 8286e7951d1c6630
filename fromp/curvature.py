"""The generalised Gauss-Newton diagonal, Eq. (4) and (9), from per-example gradients that are never all formed."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.overrides import TorchFunctionMode

from fromp import inputs
from fromp.errors import DataError, DerivativeError
from fromp.examples import Examples
from fromp.inputs import Inputs
from fromp.likelihoods import Likelihood
from fromp.model import Head, Weights, detached, device_of, evaluating, outputs, raw_outputs

MEMORY_BUDGET = 512 * 2**20  # bytes that one chunk of work may hold


def ggn_diagonal(
    model: nn.Module,
    names: tuple[str, ...],
    examples: Examples,
    likelihood: Likelihood,
    head: Head = None,
    memory_budget: int = MEMORY_BUDGET,
) -> dict[str, Tensor]:
    """diag sum_i J(x_i)' Lambda(x_i) J(x_i) over a task's data, Eq. (4): one tensor for each named weight."""
    weights = detached(model, names)
    diagonal = {name: torch.zeros_like(weight, requires_grad=False) for name, weight in weights.items()}
    with evaluating(model):
        for x, _ in chunks(model, weights, examples, head, memory_budget):
            tape = Tape(model, weights, x, head)
            factor = likelihood.factor(tape.f.detach())
            for column in factor.unbind(-1):  # (b, c): one column of S at a time
                for name, gradient in tape.gradients(column):
                    diagonal[name] += gradient.sum_of_squares()
    for name, total in diagonal.items():
        if not bool(torch.isfinite(total).all()):
            raise DerivativeError(
                f"the derivative of the outputs with respect to '{name}' is not finite; "
                "look for sqrt, log or a division at zero in that layer."
            )
    return diagonal


class Gradient(ABC):
    """d (s . f(x_i)) / d weight for every example i of a chunk, in the smallest form that holds it."""

    @abstractmethod
    def sum_of_squares(self) -> Tensor:
        """sum_i g_i^2, elementwise: the weight's own shape."""

    @abstractmethod
    def weighted_squares(self, variance: Tensor) -> Tensor:
        """sum_w v_w g_iw^2 for each example: (b,)."""


@final
@dataclass(frozen=True)
class Dense(Gradient):
    """The gradients themselves: (b, *weight.shape)."""

    g: Tensor

    def sum_of_squares(self) -> Tensor:
        return self.g.square().sum(0)

    def weighted_squares(self, variance: Tensor) -> Tensor:
        return torch.einsum("bw,w->b", self.g.reshape(len(self.g), -1).square(), variance.flatten())

    def gram(self, other: "Dense", variance: Tensor) -> Tensor:
        """sum_w g_iw v_w h_jw: (i, j)."""
        deviation = variance.flatten().sqrt()
        left = self.g.reshape(len(self.g), -1) * deviation
        right = left if other is self else other.g.reshape(len(other.g), -1) * deviation
        return left @ right.T


@final
@dataclass(frozen=True)
class Outer(Gradient):
    """g_i a_i', for a linear map applied once to each example: g is (b, out), a is (b, in)."""

    g: Tensor
    a: Tensor

    def sum_of_squares(self) -> Tensor:
        return self.g.square().T @ self.a.square()

    def weighted_squares(self, variance: Tensor) -> Tensor:
        return ((self.g.square() @ variance) * self.a.square()).sum(-1)


def outer_grams(left: list[Outer], right: list[Outer], variance: Tensor, memory_budget: int) -> Tensor:
    """sum_oi g_bo a_bi v_oi h_co e_ci for every pair of gradients that share their inputs a and e: (pairs, b, c).

    The sum over the inputs, almost all of the work, is the same for every pair and done once.
    """
    a, e = left[0].a, right[0].a
    g, h = torch.stack([outer.g for outer in left]), torch.stack([outer.g for outer in right])  # (p, b, o)
    total = a.new_zeros(len(g), len(a), len(e))
    row = variance.element_size() * ((len(a) + len(e)) * a.shape[1] + len(a) * len(e))  # bytes for each o
    step = max(1, memory_budget // row)
    for start in range(0, len(variance), step):
        some = slice(start, start + step)
        deviation = variance[some].sqrt()[:, None]  # (o, 1, i)
        scaled = a * deviation
        inner = scaled @ (scaled if left is right else e * deviation).mT  # (o, b, c)
        for p in range(len(g)):
            total[p] += torch.einsum("bo,co,obc->bc", g[p, :, some], h[p, :, some], inner)
    return total


class Tape:
    """One forward pass that remembers enough to pull gradients back to every weight, example by example.

    A weight that is applied exactly once, by a linear map or a convolution, gets its gradient from
    that layer's input and the gradient at its output. Every other weight, whatever uses it, is
    differentiated by `torch.func`: slower, never wrong, never skipped.
    """

    def __init__(self, model: nn.Module, weights: Weights, x: Inputs, head: Head) -> None:
        self.model, self.weights, self.x, self.head = model, weights, x, head
        recorder = _Recorder(weights, inputs.num_examples(x))
        with torch.enable_grad(), recorder:
            self.f = outputs(model, x, head, weights)  # (b, c)
        if not self.f.requires_grad:
            raise DerivativeError(
                "the outputs do not depend differentiably on any trainable parameter; "
                "look for argmax, round, detach or no_grad in the model."
            )
        uses = _uses(self.f, model, weights)
        self.calls = self._aligned([call for call in recorder.calls if all(uses[name] == 1 for name in call.names())])
        fast = {name for call in self.calls for name in call.names()}
        self.others = tuple(name for name in weights if name not in fast)

    def gradients(self, s: Tensor) -> Iterator[tuple[str, Gradient]]:
        """The gradient of s . f(x_i) for every weight it reaches, s: (b, c)."""
        if self.calls:
            at_outputs = _differentiate(self.f, [call.z for call in self.calls], s)
            for call, g in zip(self.calls, at_outputs, strict=True):
                if g is not None:
                    yield from call.gradients(g)
        if self.others:
            yield from self._gradients_of_others(s)

    def numbers_formed(self) -> int:
        """How many numbers are formed for each example, at most, beside the activations."""
        lambdas = 5 * self.f.shape[1] ** 2  # Lambda, its factor, and what they are made of
        others = 3 * sum(self.weights[name].numel() for name in self.others)  # vmap holds a few copies
        return lambdas + others + sum(call.numbers_formed() for call in self.calls)

    def _aligned(self, calls: list["AffineCall"]) -> list["AffineCall"]:
        """The calls whose rows are the examples in order: the gradients of some examples reach no other rows."""
        b = len(self.f)
        if b == 1 or not calls:
            return calls
        generator = torch.Generator().manual_seed(0)
        chosen = torch.rand(b, generator=generator) < 0.5
        chosen[0], chosen[-1] = True, False
        s = torch.randn(self.f.shape, generator=generator).to(self.f) * chosen[:, None].to(self.f.device)
        at_outputs = _differentiate(self.f, [call.z for call in calls], s)
        aligned = [call for call, g in zip(calls, at_outputs, strict=True) if g is None or not bool(g[~chosen].any())]
        if len(aligned) < len(calls):
            self._check_independence()
        return aligned

    def _check_independence(self) -> None:
        """An error if what the model says of an example depends on the others in its batch."""
        with torch.no_grad():
            two = outputs(self.model, inputs.take(self.x, slice(0, 2)), self.head, self.weights)
        if not torch.allclose(two, self.f[:2], rtol=1e-3, atol=1e-4):
            raise DerivativeError(
                "the outputs of one example depend on the others in its batch, even in evaluation mode; "
                "use running statistics, or statistics within an example."
            )

    def _gradients_of_others(self, s: Tensor) -> Iterator[tuple[str, Gradient]]:
        others = {name: self.weights[name].detach() for name in self.others}
        fixed = {name: w.detach() for name, w in self.weights.items() if name not in others}

        def product(others: dict[str, Tensor], x: Inputs, s: Tensor) -> Tensor:
            one = inputs.transform(lambda part: part[None], x)
            return (raw_outputs(self.model, one, self.head, {**fixed, **others})[0] * s).sum()

        try:
            gradients = vmap(grad(product), in_dims=(None, 0, 0))(others, self.x, s)
        except (RuntimeError, DataError):  # something that vmap cannot batch: one example at a time
            gradients = self._one_by_one(s)
        for name, g in gradients.items():
            yield name, Dense(g.detach())

    def _one_by_one(self, s: Tensor) -> dict[str, Tensor]:
        weights = [self.weights[name] for name in self.others]
        rows = []
        for i in range(len(s)):
            mask = torch.zeros_like(s)
            mask[i] = s[i]
            row = _differentiate(self.f, weights, mask)
            rows.append([torch.zeros_like(w) if g is None else g.to_dense() for g, w in zip(row, weights, strict=True)])
        return {name: torch.stack(column) for name, column in zip(self.others, zip(*rows, strict=True), strict=True)}


class AffineCall(ABC):
    """z = W a + bias as it happened in a forward pass, with the names of the tracked weights in it."""

    weight: str | None
    bias: str | None
    z: Tensor

    def names(self) -> list[str]:
        """The tracked weights that this call applies."""
        return [name for name in (self.weight, self.bias) if name is not None]

    @abstractmethod
    def gradients(self, g: Tensor) -> Iterator[tuple[str, Gradient]]:
        """The gradients of this call's weights, given those of its output, g like z."""

    @abstractmethod
    def numbers_formed(self) -> int:
        """How many numbers `gradients` forms for each example."""


@final
class LinearCall(AffineCall):
    """`F.linear`: a is (b, ..., in), z is (b, ..., out)."""

    def __init__(self, weight: str | None, bias: str | None, a: Tensor, z: Tensor) -> None:
        self.weight, self.bias, self.a, self.z = weight, bias, a.detach(), z

    def gradients(self, g: Tensor) -> Iterator[tuple[str, Gradient]]:
        once = self.a.ndim == 2
        if self.weight is not None:
            yield (
                self.weight,
                Outer(g, self.a) if once else Dense(torch.einsum("b...o,b...i->boi", g, self.a)),
            )
        if self.bias is not None:
            yield self.bias, Dense(g if once else g.flatten(1, -2).sum(1))

    def numbers_formed(self) -> int:
        outer = self.a.shape[-1] * self.z.shape[-1]
        return self.z.shape[-1] + (0 if self.a.ndim == 2 else outer)


@final
class ConvCall(AffineCall):
    """`F.conv1d`, `2d` or `3d` with any stride, padding, dilation and groups."""

    def __init__(
        self,
        weight: str | None,
        bias: str | None,
        a: Tensor,
        z: Tensor,
        shape: torch.Size,
        geometry: "Geometry",
    ) -> None:
        self.weight, self.bias, self.a, self.z = weight, bias, a.detach(), z
        self.shape, self.geometry = shape, geometry
        self._patches: Tensor | None = None

    def gradients(self, g: Tensor) -> Iterator[tuple[str, Gradient]]:
        b, out = g.shape[:2]
        if self.weight is not None:
            if self._patches is None:  # they depend on the input alone: formed once for all columns of S
                self._patches = self.geometry.patches(self.a, self.shape)
            grouped = g.reshape(b, self.geometry.groups, out // self.geometry.groups, -1)
            yield self.weight, Dense((grouped @ self._patches).reshape(b, *self.shape))
        if self.bias is not None:
            yield self.bias, Dense(g.flatten(2).sum(-1))

    def numbers_formed(self) -> int:
        positions = math.prod(self.z.shape[2:])
        return self.z.shape[1] + self.shape.numel() + positions * self.geometry.groups * self.shape[1:].numel()


@dataclass(frozen=True)
class Geometry:
    """How a convolution walks over its input."""

    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]
    groups: int

    def patches(self, a: Tensor, shape: torch.Size) -> Tensor:
        """The patch under the kernel at each output position: (b, groups, positions, in / groups * kernel)."""
        kernel = shape[2:]
        reach = [d * (k - 1) for d, k in zip(self.dilation, kernel, strict=True)]
        if self.padding == "same":
            sides = [(r // 2, r - r // 2) for r in reach]
        else:
            sides = [(0, 0)] * len(kernel) if isinstance(self.padding, str) else [(p, p) for p in self.padding]
        a = F.pad(a, [pad for side in reversed(sides) for pad in side])
        for axis, (r, s, d) in enumerate(zip(reach, self.stride, self.dilation, strict=True), start=2):
            a = a.unfold(axis, r + 1, s)[..., ::d]  # ..., position, ..., offset
        b, channels, n = a.shape[0], a.shape[1], len(kernel)
        a = a.reshape(b, self.groups, channels // self.groups, *a.shape[2:])
        order = [0, 1, *range(3, 3 + n), 2, *range(3 + n, 3 + 2 * n)]
        return a.permute(order).reshape(b, self.groups, math.prod(a.shape[3 : 3 + n]), -1)


def chunks(
    model: nn.Module, weights: Weights, examples: Examples, head: Head, memory_budget: int
) -> Iterator[tuple[Inputs, Tensor]]:
    """The examples in order on the model's device, checked, as many at a time as the budget allows."""
    device = device_of(model)
    x, _ = examples.take(torch.arange(min(2, len(examples))))
    size = max(1, memory_budget // bytes_per_example(model, weights, inputs.move(x, device), head))
    seen = 0
    for x, y in examples.batches(size):
        _check_inputs(x, seen)
        seen += len(y)
        yield inputs.move(x, device), y.to(device)


def bytes_per_example(model: nn.Module, weights: Weights, x: Inputs, head: Head) -> int:
    """What one example costs in a `Tape` and the gradients pulled from it, measured on a few of them."""
    tape = Tape(model, weights, x, head)
    # The activations twice: their values, and the gradients on the way back.
    return 2 * activation_bytes(model, weights, x, head) + tape.numbers_formed() * tape.f.element_size()


def activation_bytes(model: nn.Module, weights: Weights, x: Inputs, head: Head) -> int:
    """What autograd keeps of one example between a forward pass and its backward pass, measured on a few."""
    own = {w.untyped_storage().data_ptr() for w in model.parameters()}
    kept: dict[int, int] = {}

    def weigh(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return t

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(weigh, lambda t: t):
        outputs(model, x, head, weights)
    return sum(kept.values()) // inputs.num_examples(x) + 1


class _Recorder(TorchFunctionMode):
    """Sees every torch function a forward pass calls, and notes the affine ones that apply tracked weights."""

    def __init__(self, weights: Weights, batch: int) -> None:
        super().__init__()
        self.names = {id(weight): name for name, weight in weights.items()}
        self.batch = batch
        self.calls: list[AffineCall] = []

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        bind = _AFFINE.get(func)
        call = bind(self, result, *args, **kwargs) if bind is not None else None
        if call is None or not call.names():
            return result
        self.calls.append(call)
        # An in-place activation would overwrite z; it gets a copy to write on.
        return result.clone()

    def linear(self, z: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> AffineCall | None:
        # The examples must lie along the first axis, and no other axis may be mistaken for them.
        if input.ndim < 2 or weight.ndim != 2 or input.shape[0] != self.batch or self.batch in input.shape[1:-1]:
            return None
        return LinearCall(self.names.get(id(weight)), self.names.get(id(bias)), input, z)

    def conv(
        self,
        z: Tensor,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> AffineCall | None:
        n = weight.ndim - 2
        if input.ndim != weight.ndim or input.shape[0] != self.batch:
            return None
        padding = padding if isinstance(padding, str) else _tuple(padding, n)
        geometry = Geometry(_tuple(stride, n), padding, _tuple(dilation, n), groups)
        return ConvCall(self.names.get(id(weight)), self.names.get(id(bias)), input, z, weight.shape, geometry)


_AFFINE: dict[Callable, Callable[..., AffineCall | None]] = {
    F.linear: _Recorder.linear,
    F.conv1d: _Recorder.conv,
    F.conv2d: _Recorder.conv,
    F.conv3d: _Recorder.conv,
}


def _differentiate(f: Tensor, at: list[Tensor], s: Tensor) -> tuple[Tensor | None, ...]:
    try:
        return torch.autograd.grad(f, at, s, retain_graph=True, allow_unused=True)
    except (NotImplementedError, RuntimeError) as error:
        raise DerivativeError(
            f"the model cannot be differentiated: {error} Freeze the parameters before that layer, "
            "or give the layer a derivative."
        ) from error


def _uses(f: Tensor, model: nn.Module, weights: Weights) -> dict[str, int]:
    """How often each weight enters the graph of f."""
    names = {id(weight): name for name, weight in weights.items()}
    own = {id(parameter): name for name, parameter in model.named_parameters()}
    counts = dict.fromkeys(weights, 0)
    todo, seen = [f.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == "CheckpointFunctionBackward":
            raise DerivativeError(
                "the model uses reentrant checkpointing, which hides its weights; pass use_reentrant=False."
            )
        for following, _ in node.next_functions:
            leaf = getattr(following, "variable", None)
            if id(leaf) in names:
                counts[names[id(leaf)]] += 1
            elif id(leaf) in own:
                raise DerivativeError(
                    f"'{own[id(leaf)]}' is used through a reference kept outside its module; "
                    "use the module's attribute in forward instead."
                )
            todo.append(following)
    return counts


def _tuple(value: Any, n: int) -> tuple[int, ...]:
    return (value,) * n if isinstance(value, int) else tuple(value) * (n if len(value) == 1 else 1)


def _check_inputs(x: Inputs, start: int) -> None:
    for part in inputs.tensors(x):
        if part.is_floating_point() and not bool(torch.isfinite(part).all()):
            wrong = (~torch.isfinite(part).reshape(len(part), -1).all(1)).nonzero().flatten()
            raise DataError(
                f"input {start + int(wrong[0])} holds NaN or infinity ({len(wrong)} such inputs in this batch); "
                "remove or repair those examples."
            )
