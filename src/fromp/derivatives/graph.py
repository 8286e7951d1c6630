"""The graph that autograd keeps of a forward pass: who uses what."""

from collections import Counter
from collections.abc import Collection
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from fromp.derivatives.model import Weights, named_weights
from fromp.foundation.errors import DerivativeError

Edge: TypeAlias = tuple[Node, int]


def edge_of(t: Tensor) -> Edge:
    """Where the gradient of a tensor arrives."""
    edge = get_gradient_edge(t)
    return edge.node, edge.output_nr


def uses(of: Tensor, cut: Collection[Edge] = ()) -> Counter[Edge]:
    """How often each tensor behind `of`, and `of` itself, is used; what is cut is counted, and not gone through."""
    counts: Counter[Edge] = Counter([edge_of(of)])
    todo, seen = [edge_of(of)[0]], set()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        for following, place in node.next_functions:
            if following is not None:
                counts[following, place] += 1
                if (following, place) not in cut:
                    todo.append(following)
    return counts


def check(found: Collection[Edge], model: nn.Module, weights: Weights) -> None:
    """An error if the model's weights are used in a way that hides them."""
    own = {id(parameter): name for name, parameter in named_weights(model).items()}
    swapped = {id(weight) for weight in weights.values()}
    for node, _ in found:
        leaf = getattr(node, "variable", None)
        if node.name() == "CheckpointFunctionBackward":
            raise DerivativeError(
                "the model uses reentrant checkpointing, which hides its weights; pass use_reentrant=False."
            )
        if id(leaf) in own and id(leaf) not in swapped:
            raise DerivativeError(
                f"'{own[id(leaf)]}' is used through a reference kept outside its module; "
                "use the module's attribute in forward instead."
            )


def pull(v: Tensor, leaves: list[Tensor], g: Tensor) -> list[Tensor | None]:
    """The gradients of leaves that v is computed from, given those of v, g: (b, *v.shape) -> (b, *leaf.shape) each."""
    try:
        found = torch.autograd.grad(v, leaves, g, retain_graph=True, allow_unused=True, is_grads_batched=True)
    except RuntimeError:  # something that vmap cannot batch: one example at a time
        rows = [torch.autograd.grad(v, leaves, one, retain_graph=True, allow_unused=True) for one in g]
        return [None if column[0] is None else torch.stack(column) for column in zip(*rows, strict=True)]
    return list(found)
