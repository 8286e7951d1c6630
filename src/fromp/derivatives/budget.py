"""Work in chunks that fit into a memory budget."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from fromp.derivatives.model import Head, Weights, checked_outputs, detached, device_of, evaluating, trainable
from fromp.derivatives.tape import Tape
from fromp.foundation import inputs
from fromp.foundation.examples import Examples
from fromp.foundation.inputs import Inputs

MEMORY_BUDGET = 512 * 2**20  # bytes that one chunk of the once-per-task work may hold
PASS_BYTES = 96 * 2**20  # bytes of activations in one pass over memory: larger ones fall out of the cache


def of_a_factor(num_outputs: int) -> int:
    """Lambda, its factor, and what they are made of: numbers for each example, where a likelihood knows no better."""
    return 5 * num_outputs**2


def chunks(
    model: nn.Module,
    weights: Weights,
    examples: Examples,
    head: Head,
    memory_budget: int,
    lambdas: Callable[[int], int] = of_a_factor,
) -> Iterator[tuple[Inputs, Tensor]]:
    """The examples in order on the model's device, checked, as many at a time as the budget allows.

    lambdas: how many numbers a likelihood forms for each example, by the number of outputs.
    """
    device = device_of(model)
    x, _ = examples.take(torch.arange(min(2, len(examples))))
    size = max(1, memory_budget // bytes_per_example(model, weights, inputs.move(x, device), head, lambdas))
    seen = 0
    for x, y in examples.batches(size):
        inputs.check_finite(x, seen)
        seen += len(y)
        yield inputs.move(x, device), y.to(device)


def tiles(
    model: nn.Module,
    weights: Weights,
    x: Inputs,
    head: Head,
    memory_budget: int,
    lambdas: Callable[[int], int] = of_a_factor,
) -> Iterator[Inputs]:
    """The inputs in order, as many at a time as the budget allows."""
    few = inputs.take(x, slice(0, 2))
    yield from inputs.split(x, max(1, memory_budget // bytes_per_example(model, weights, few, head, lambdas)))


def points_per_pass(model: nn.Module, parts: Sequence[tuple[Inputs, Head]]) -> int:
    """How many points may go through the model at once in a training step, for the costliest of several inputs."""
    weights = detached(model, trainable(model))
    few = ((inputs.take(x, slice(0, 2)), head) for x, head in parts)
    kinds = {(inputs.signature(x), inputs.num_examples(x), head): x for x, head in few}  # those alike cost the same
    with evaluating(model):
        cost = max(activation_bytes(model, weights, x, head) for (_, _, head), x in kinds.items())
    return max(1, PASS_BYTES // cost)


def bytes_per_example(
    model: nn.Module, weights: Weights, x: Inputs, head: Head, lambdas: Callable[[int], int] = of_a_factor
) -> int:
    """What one example costs in a `Tape` and the gradients pulled from it, measured on a few of them."""
    tape = Tape(model, weights, x, head)
    # The activations twice: their values, and the gradients on the way back.
    numbers = lambdas(tape.f.shape[1]) + tape.numbers_formed()
    return 2 * activation_bytes(model, weights, x, head) + numbers * tape.f.element_size()


def activation_bytes(model: nn.Module, weights: Weights, x: Inputs, head: Head) -> int:
    """What autograd keeps of one example between a forward pass and its backward pass, measured on a few."""
    own = {w.untyped_storage().data_ptr() for w in model.parameters()}
    x = inputs.transform(lambda part: part.clone(), x)  # a few rows of a large tensor would be weighed as all of it
    kept: dict[int, int] = {}

    alive = []  # while it is weighed, so that no storage is taken for an earlier one in its place

    def weigh(t: Tensor) -> None:
        storage = t.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(storage)

    # Nothing is handed to autograd, which would hold its own outputs, and the examples with them, for ever.
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(weigh, lambda none: none):
        checked_outputs(model, x, head, weights)
    return sum(kept.values()) // inputs.num_examples(x) + 1
