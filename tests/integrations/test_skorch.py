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
