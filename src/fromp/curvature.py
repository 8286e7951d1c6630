"""The generalised Gauss-Newton diagonal, Eq. (4) and (9)."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fromp.derivatives.model import Head, Weights, detached, device_of, evaluating
from fromp.derivatives.tape import Tape, bytes_per_example
from fromp.foundation import inputs
from fromp.foundation.errors import DataError, DerivativeError
from fromp.foundation.examples import Examples
from fromp.foundation.inputs import Inputs
from fromp.likelihoods import Likelihood

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
    return {name: total * examples.weight for name, total in diagonal.items()}


def chunks(
    model: nn.Module, weights: Weights, examples: Examples, head: Head, memory_budget: int
) -> Iterator[tuple[Inputs, Tensor]]:
    """The examples in order on the model's device, checked, as many at a time as the budget allows."""
    device = device_of(model)
    x, _ = examples.take(torch.arange(min(2, len(examples))))
    size = max(1, memory_budget // bytes_per_example(model, weights, inputs.move(x, device), head))
    seen = 0
    for x, y in examples.batches(size):
        check_inputs(x, seen)
        seen += len(y)
        yield inputs.move(x, device), y.to(device)


def check_inputs(x: Inputs, start: int = 0) -> None:
    """An error if an input is not finite; the first of them is number `start`."""
    for part in inputs.tensors(x):
        if part.is_floating_point() and not bool(torch.isfinite(part).all()):
            wrong = (~torch.isfinite(part).reshape(len(part), -1).all(1)).nonzero().flatten()
            raise DataError(
                f"input {start + int(wrong[0])} holds NaN or infinity ({len(wrong)} such inputs in this batch); "
                "remove or repair those examples."
            )
