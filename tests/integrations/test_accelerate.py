"""Accelerate's loop ends with the bits of the loop by hand, and its checkpoints carry the memory."""

import pytest
import torch
import torch.nn.functional as F
from oracles import stream

pytestmark = pytest.mark.slow


def learn(accelerator, model, reg, tasks, accumulated=1):
    from fromp.integrations.accelerate import end_task

    for k in tasks:
        optimizer = torch.optim.Adam(model.parameters(), stream.LR)
        optimizer, loader = accelerator.prepare(optimizer, stream.loader(k))
        for _ in range(stream.EPOCHS):
            for x, y in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(F.cross_entropy(model(x), y) + reg.penalty())
                    optimizer.step()
                    optimizer.zero_grad()
        end_task(reg, loader)


@pytest.mark.parametrize("accumulated", [1, 3])
def test_the_bits_of_the_loop_by_hand(accumulated):
    from accelerate import Accelerator

    from fromp.integrations.accelerate import prepared

    expected = stream.network()
    kept = stream.by_hand(expected, accumulated=accumulated)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulated)
    model = accelerator.prepare(stream.network())
    reg = prepared(accelerator, stream.regulariser(accelerator.unwrap_model(model)))
    learn(accelerator, model, reg, range(stream.TASKS))
    stream.assert_equal(model, expected)
    stream.assert_same_memory(reg, kept)


def test_save_state_carries_the_memory(tmp_path):
    from accelerate import Accelerator

    from fromp.integrations.accelerate import prepared

    expected = stream.network()
    stream.by_hand(expected, tasks=2)
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(stream.network())
    reg = prepared(accelerator, stream.regulariser(model))
    learn(accelerator, model, reg, [0])
    accelerator.save_state(str(tmp_path / "state"))

    other = Accelerator(cpu=True)
    fresh = other.prepare(stream.network())
    again = prepared(other, stream.regulariser(fresh))
    assert len(again.memories) == 0
    other.prepare(torch.optim.Adam(fresh.parameters(), stream.LR), stream.loader(0))  # as many as were saved
    other.load_state(str(tmp_path / "state"))
    stream.assert_same_memory(again, reg)
    learn(other, fresh, again, [1])
    stream.assert_equal(fresh, expected)
