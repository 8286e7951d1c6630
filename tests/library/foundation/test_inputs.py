"""Inputs as one thing, however many tensors they have."""

import pytest
import torch

from fromp.foundation import inputs

X = torch.arange(2 * 3 * 4 * 4.0).view(2, 3, 4, 4).repeat(5, 1, 1, 1)


@pytest.mark.parametrize("x", [X, X.contiguous(memory_format=torch.channels_last), X[:, :, 1:], X.long()])
@pytest.mark.parametrize("at", [torch.tensor([3, 0, 3]), torch.tensor([]).long(), torch.arange(10) > 6, slice(1, 9, 2)])
def test_taking_examples_is_indexing_in_the_same_layout(x, at):
    found = inputs.take({"a": (x, "text"), "b": x}, at)
    for part in (found["a"][0], found["b"]):
        assert torch.equal(part, x[at])
        assert part.stride() == x[at].stride()
    assert found["a"][1] == "text"
