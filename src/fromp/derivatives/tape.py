"""A forward pass that can be differentiated example by example, for any model."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from fromp.derivatives.affine import AffineCall, Recorder
from fromp.derivatives.gradients import Dense, Gradient
from fromp.derivatives.model import Head, Weights, outputs
from fromp.foundation import inputs
from fromp.foundation.errors import DataError, DerivativeError
from fromp.foundation.inputs import Inputs


class Tape:
    """One forward pass that remembers enough to pull gradients back to every weight, example by example.

    A weight that is applied exactly once, by a linear map or a convolution, gets its gradient from
    that layer's input and the gradient at its output. Every other weight, whatever uses it, is
    differentiated by `torch.func`: slower, never wrong, never skipped.
    """

    def __init__(self, model: nn.Module, weights: Weights, x: Inputs, head: Head) -> None:
        self.model, self.weights, self.x, self.head = model, weights, x, head
        recorder = Recorder(weights, inputs.num_examples(x))
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
                    yield from ((name, gradient.wide()) for name, gradient in call.gradients(g))
        if self.others:
            yield from ((name, gradient.wide()) for name, gradient in self._gradients_of_others(s))

    def numbers_formed(self) -> int:
        """How many numbers are formed for each example, at most, beside the activations."""
        lambdas = 5 * self.f.shape[1] ** 2  # Lambda, its factor, and what they are made of
        others = 3 * sum(self.weights[name].numel() for name in self.others)  # vmap holds a few copies
        return lambdas + others + sum(call.numbers_formed() for call in self.calls)

    def _aligned(self, calls: list[AffineCall]) -> list[AffineCall]:
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
        if not bool(torch.isfinite(self.f).all()):  # the check cannot tell; other checks report it
            return
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
            return (outputs(self.model, one, self.head, {**fixed, **others})[0] * s).sum()

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
