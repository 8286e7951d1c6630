"""skorch's loop, with the callback, ends with the bits of the loop by hand."""

import pytest
import torch
from oracles import stream

pytestmark = pytest.mark.slow


def net(model, *callbacks, **options):
    from skorch import NeuralNetClassifier

    return NeuralNetClassifier(
        model, criterion=torch.nn.CrossEntropyLoss, optimizer=torch.optim.Adam, lr=stream.LR, batch_size=stream.BATCH,
        max_epochs=stream.EPOCHS, train_split=None, verbose=0, callbacks=list(callbacks), **options,
    )  # fmt: skip


def test_the_bits_of_the_loop_by_hand():
    from fromp.integrations.skorch import RegulariserCallback

    expected = stream.network()
    kept = stream.by_hand(expected)
    callback = RegulariserCallback(stream.regulariser)
    classifier = net(stream.network(), callback).initialize()
    for k in range(stream.TASKS):
        classifier._initialize_optimizer()  # Adam restarts with each task
        x, y = stream.task(k).tensors
        classifier.partial_fit(x, y)
    stream.assert_equal(classifier.module_, expected)
    stream.assert_same_memory(callback.regulariser_, kept)


class OfHead(torch.nn.CrossEntropyLoss):
    """The loss of some outputs."""

    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, f, y):
        return super().forward(f[:, self.head], y)


def test_mixed_past_is_given_the_minibatch():
    from fromp.integrations.skorch import RegulariserCallback

    expected = stream.network(9)
    kept = stream.mixed_by_hand(expected)
    callback = RegulariserCallback(stream.mixed)
    classifier = net(stream.network(9), callback)
    classifier.set_params(criterion=OfHead, criterion__head=stream.HEADS[0]).initialize()
    for k, head in enumerate(stream.HEADS):
        classifier.set_params(criterion__head=head, callbacks__RegulariserCallback__head=head)
        classifier._initialize_optimizer()
        classifier.partial_fit(*stream.task(k).tensors)
    stream.assert_equal(classifier.module_, expected)
    stream.assert_same_memory(callback.regulariser_, kept)


def test_fit_starts_anew():
    """`fit` builds a new module, and the memory of the one before does not hold it."""
    from sklearn.base import clone

    from fromp.integrations.skorch import RegulariserCallback

    callback = RegulariserCallback(stream.regulariser, head=[0, 1, 2])
    classifier = net(type(stream.network()), callback, module__args=())
    assert clone(callback).get_params() == {"make": stream.regulariser, "head": [0, 1, 2]}
    first = stream.network()
    classifier = net(first, callback)
    classifier.fit(*stream.task(0).tensors)
    classifier.partial_fit(*stream.task(1).tensors)
    assert len(callback.regulariser_.memories) == 2
    classifier.set_params(module=stream.network())
    classifier.fit(*stream.task(0).tensors)
    assert len(callback.regulariser_.memories) == 1
