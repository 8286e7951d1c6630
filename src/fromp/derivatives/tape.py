"""A forward pass that can be differentiated example by example, for any model."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import grad, vmap

from fromp.derivatives import graph
from fromp.derivatives.calls import Call, LinearCall
from fromp.derivatives.gradients import Dense, Gradient, added
from fromp.derivatives.model import Head, Weights, check_dtype, outputs
from fromp.derivatives.recorder import Recorder
from fromp.foundation import inputs
from fromp.foundation.errors import DataError, DerivativeError
from fromp.foundation.inputs import Inputs


@dataclass(frozen=True)
class Use:
    """A parameter that a call applies, and the weights it is, or is computed from."""

    call: Call
    parameter: Tensor
    names: tuple[str, ...]

    @property
    def direct(self) -> bool:
        """Whether the parameter is a weight itself."""
        return self.parameter.is_leaf


class Tape:
    """One forward pass that remembers enough to pull gradients back to every weight, example by example.

    A weight that enters the outputs only through calls, be it as it is or in part, gets its gradient from those
    calls' inputs and the gradients at their outputs. Every other weight, whatever uses it, is differentiated by
    `torch.func`: slower, never wrong, never skipped.
    """

    def __init__(self, model: nn.Module, weights: Weights, x: Inputs, head: Head) -> None:
        self.model, self.weights, self.x, self.head = model, weights, x, head
        recorder = Recorder(inputs.num_examples(x))
        try:
            with torch.enable_grad(), recorder:
                self.f = outputs(model, x, head, weights)  # (b, c)
        except RuntimeError as error:
            check_dtype(model, x, error)
            raise
        if self.f.is_inference():
            raise DerivativeError(
                "the outputs were made under torch.inference_mode, and have no derivatives; take it out of the "
                "model's forward, or call end_task and predict outside of it (torch.no_grad does no harm)."
            )
        if not self.f.requires_grad:
            raise DerivativeError(
                "the outputs do not depend differentiably on any trainable parameter; "
                "look for argmax, round, detach or no_grad in the model."
            )
        self.uses, slow = self._uses(recorder.calls)
        self.calls = list({id(use.call): use.call for use in self.uses}.values())
        self.times = Counter(name for use in self.uses for name in use.names)  # how often each weight is applied
        self.others = tuple(name for name in weights if name in slow)

    def gradients(self, s: Tensor) -> Iterator[tuple[str, Gradient]]:
        """The gradient of s . f(x_i) for every weight it reaches, s: (b, c)."""
        waiting: dict[str, list[Gradient]] = {}
        at_outputs = _differentiate(self.f, [call.edge for call in self.calls], s)
        found = {id(call): g for call, g in zip(self.calls, at_outputs, strict=True)}
        for use in self.uses:
            g = found[id(use.call)]
            if g is not None:
                for name, gradient in self._of(use, use.call.gradient(use.parameter, g)):
                    if self.times[name] == 1:
                        yield name, gradient.wide()
                    else:
                        waiting.setdefault(name, []).append(gradient)
        for name, parts in waiting.items():
            yield name, added(parts).wide()
        if self.others:
            yield from ((name, gradient.wide()) for name, gradient in self._gradients_of_others(s))

    def numbers_formed(self) -> int:
        """How many numbers the gradients of each example are, at most, beside the activations."""
        others = 3 * sum(self.weights[name].numel() for name in self.others)  # vmap holds a few copies
        derived = sum(
            3 * use.parameter.numel() + 2 * sum(self.weights[name].numel() for name in use.names)
            for use in self.uses
            if not use.direct
        )
        return others + derived + sum(call.numbers_formed() for call in self.calls)

    def last_linear(self) -> tuple[Tensor, dict[str, str]] | None:
        """The input of the linear layer that gives f itself, and the names of its weight and bias among the weights.

        None if there is no such layer, or if they are used elsewhere too.
        """
        for call in self.calls:
            if isinstance(call, LinearCall) and call.edge == get_gradient_edge(self.f) and call.once:
                uses = [use for use in self.uses if use.call is call]
                if not call.swapped and all(use.direct and self.times[use.names[0]] == 1 for use in uses):
                    return call.a, {"weight" if u.parameter is call.weight else "bias": u.names[0] for u in uses}
        return None

    def _of(self, use: Use, gradient: Gradient) -> Iterator[tuple[str, Gradient]]:
        """The gradients of the weights behind a parameter, given the parameter's own."""
        if use.direct:
            yield use.names[0], gradient
            return
        leaves = [self.weights[name] for name in use.names]
        for name, g in zip(use.names, graph.pull(use.parameter, leaves, gradient.dense().g), strict=True):
            if g is not None:
                yield name, Dense(g)

    def _uses(self, calls: list[Call]) -> tuple[list[Use], set[str]]:
        """The parameters of those calls that account for every way from some weights to the outputs; other weights."""
        counts = graph.uses(self.f)
        graph.check(counts, self.model, self.weights)
        names = {graph.edge_of(weight): name for name, weight in self.weights.items()}
        calls = self._aligned([call for call in calls if (call.edge.node, call.edge.output_nr) in counts])
        behind = {
            id(p): graph.uses(p) for call in calls for p in call.parameters if not p.is_leaf
        }  # what each parameter is computed from
        computed = {node for found in behind.values() for node, _ in found}
        calls = [call for call in calls if call.edge.node not in computed]  # the gradients of those pass through p's
        applied = Counter(graph.edge_of(p) for call in calls for p in call.parameters)
        cut = {edge for edge, times in applied.items() if times == counts[edge]}
        slow = {names[edge] for edge in graph.uses(self.f, cut) if edge in names and edge not in cut}
        found = []
        for call in calls:
            for p in call.parameters:
                own = [graph.edge_of(p)] if p.is_leaf else behind[id(p)]
                reached = tuple(names[edge] for edge in own if edge in names and names[edge] not in slow)
                if reached:
                    found.append(Use(call, p, reached))
        return found, slow

    def _aligned(self, calls: list[Call]) -> list[Call]:
        """The calls of which it is certain where the examples lie: gradients of some examples reach no other rows."""
        b = len(self.f)
        if b == 1 or not calls:
            return calls
        generator = torch.Generator().manual_seed(0)
        chosen = torch.rand(b, generator=generator) < 0.5
        chosen[0], chosen[-1] = True, False
        s = torch.randn(self.f.shape, generator=generator).to(self.f)
        silent = set(map(id, calls))
        for some in (chosen, ~chosen):  # the others tell where these leave a doubt
            doubtful = [call for call in calls if some is chosen or len(call.layouts) > 1]
            edges = [call.edge for call in doubtful]
            at_outputs = _differentiate(self.f, edges, s * some[:, None].to(s.device))
            for call, g in zip(doubtful, at_outputs, strict=True):
                if g is not None and bool(g.any()):
                    silent.discard(id(call))
                    call.layouts = [one for one in call.layouts if not bool(one.front(g)[~some].any())]
        aligned = [call for call in calls if len(call.layouts) == 1 or id(call) in silent]
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
        for name, g in (self._one_by_one(s) if len(s) == 1 else self._vectorised(s)).items():
            yield name, Dense(g.detach())

    def _vectorised(self, s: Tensor) -> dict[str, Tensor]:
        others = {name: self.weights[name].detach() for name in self.others}
        fixed = {name: w.detach() for name, w in self.weights.items() if name not in others}

        def product(others: dict[str, Tensor], x: list[Tensor], s: Tensor) -> Tensor:
            one = inputs.replace(self.x, (part[None] for part in x))
            return (outputs(self.model, one, self.head, {**fixed, **others})[0] * s).sum()

        try:
            return vmap(grad(product), in_dims=(None, 0, 0))(others, list(inputs.tensors(self.x)), s)
        except (RuntimeError, DataError):  # something that vmap cannot batch: one example at a time
            return self._one_by_one(s)

    def _one_by_one(self, s: Tensor) -> dict[str, Tensor]:
        weights = [self.weights[name] for name in self.others]
        rows = []
        for i in range(len(s)):
            mask = torch.zeros_like(s)
            mask[i] = s[i]
            row = _differentiate(self.f, weights, mask)
            rows.append([torch.zeros_like(w) if g is None else g.to_dense() for g, w in zip(row, weights, strict=True)])
        return {name: torch.stack(column) for name, column in zip(self.others, zip(*rows, strict=True), strict=True)}


def _differentiate(f: Tensor, at: Sequence[Tensor] | Sequence[GradientEdge], s: Tensor) -> tuple[Tensor | None, ...]:
    if not at:
        return ()
    try:
        return torch.autograd.grad(f, at, s, retain_graph=True, allow_unused=True)
    except (NotImplementedError, RuntimeError) as error:
        raise DerivativeError(
            f"the model cannot be differentiated: {error} Freeze the parameters before that layer, "
            "or give the layer a derivative."
        ) from error
