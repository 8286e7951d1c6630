"""The Trainer of Hugging Face, with the mixin, ends with the bits of the loop by hand."""

import pytest
import torch
import torch.nn.functional as F
from oracles import stream
from torch import nn

from fromp import FROMP, FrompError
from fromp.foundation import storage

pytestmark = pytest.mark.slow


class Net(nn.Module):
    """The network of the stream, as the Trainer calls it: by names, with the loss in what it returns."""

    def __init__(self, outputs=3):
        super().__init__()
        self.network, self.head = stream.network(outputs), list(range(outputs))

    def forward(self, x, labels=None):
        logits = self.network(x)
        if labels is None:
            return {"logits": logits}
        return {"loss": F.cross_entropy(logits[:, self.head], labels), "logits": logits}


def dataset(k):
    return [{"x": x, "labels": y} for x, y in stream.task(k)]


def trainer(model, k, folder, reg, callbacks=(), ending=None, **options):
    from transformers import Trainer, TrainingArguments

    from fromp.integrations.transformers import RegulariserMixin

    class InOrder(Trainer):
        def _get_train_sampler(self, *args, **kwargs):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    class RegularisedTrainer(RegulariserMixin, InOrder):
        pass

    options = {"max_grad_norm": 0.0, "save_strategy": "no", **options}
    arguments = TrainingArguments(
        output_dir=str(folder), num_train_epochs=stream.EPOCHS, per_device_train_batch_size=stream.BATCH,
        learning_rate=stream.LR, lr_scheduler_type="constant", optim="adamw_torch", report_to=[], use_cpu=True,
        disable_tqdm=True, logging_strategy="no", seed=0, **options,
    )  # fmt: skip
    return RegularisedTrainer(
        model, arguments, train_dataset=dataset(k), regulariser=reg, callbacks=list(callbacks), ending=ending
    )


@pytest.mark.parametrize("options", [{}, {"accumulated": 3}, {"clip": 0.05}, {"accumulated": 2, "clip": 0.1}], ids=str)
def test_the_bits_of_the_loop_by_hand(tmp_path, options):
    expected = stream.network()
    kept = stream.by_hand(expected, **options)
    model = Net()
    reg = stream.regulariser(model)
    for k in range(stream.TASKS):
        trainer(
            model, k, tmp_path, reg,
            gradient_accumulation_steps=options.get("accumulated", 1), max_grad_norm=options.get("clip", 0.0),
        ).train()  # fmt: skip
    stream.assert_equal(model, expected)
    for a, b in zip(reg.memories, kept.memories, strict=True):
        assert torch.equal(a.inputs["x"], b.inputs)
    assert reg.penalty() == kept.penalty()


def test_another_model_is_refused(tmp_path):
    with pytest.raises(FrompError, match="model, a Net, is no part of the Net that is trained"):
        trainer(Net(), 0, tmp_path, stream.regulariser(Net())).train()


def test_mixed_past_is_given_the_minibatch(tmp_path):
    expected = stream.network(9)
    stream.mixed_by_hand(expected)
    model = Net(9)
    reg = stream.mixed(model)
    for k, model.head in enumerate(stream.HEADS):
        trainer(model, k, tmp_path, reg, ending={"head": model.head}).train()
    stream.assert_equal(model, expected)
    assert [memory.head for memory in reg.memories] == [*map(tuple, stream.HEADS)]


def test_a_loss_summed_over_accumulated_batches(tmp_path):
    """Where the model divides by all items of a step, the penalty counts once per step too."""

    class Summing(Net):
        def forward(self, x, labels=None, num_items_in_batch=None, **kwargs):
            logits = self.network(x)
            if labels is None:
                return {"logits": logits}
            items = len(labels) if num_items_in_batch is None else num_items_in_batch
            return {"loss": F.cross_entropy(logits, labels, reduction="sum") / items, "logits": logits}

    expected = stream.network()
    stream.by_hand(expected, tasks=2, accumulated=3)
    model = Summing()
    reg = stream.regulariser(model)
    for k in range(2):
        trainer(model, k, tmp_path, reg, gradient_accumulation_steps=3).train()
    for a, b in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def test_a_run_resumes_with_its_memory(tmp_path):
    """Killed within the second task, it goes on from the last checkpoint and ends as if it had not been."""
    from transformers import TrainerCallback

    expected = stream.network()
    stream.by_hand(expected, tasks=2)
    model = Net()
    reg = stream.regulariser(model)
    trainer(model, 0, tmp_path / "0", reg).train()

    class Kill(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 9:
                raise KeyboardInterrupt

    saving = {"save_strategy": "steps", "save_steps": 4}
    with pytest.raises(KeyboardInterrupt):
        trainer(model, 1, tmp_path / "1", reg, [Kill()], **saving).train()
    assert len(reg.memories) == 1

    fresh = Net()
    other = stream.regulariser(fresh)
    trainer(fresh, 1, tmp_path / "1", other, **saving).train(resume_from_checkpoint=True)
    stream.assert_equal(fresh, expected)
    assert len(other.memories) == 2


def test_the_memory_is_saved_beside_the_model(tmp_path):
    model = Net()
    reg = stream.regulariser(model)
    fit = trainer(model, 0, tmp_path, reg)
    fit.train()
    fit.save_model(str(tmp_path / "kept"))
    assert len(storage.read(tmp_path / "kept" / "fromp", "fromp")["tasks"]) == 1
    loaded = FROMP.load(tmp_path / "kept" / "fromp", model)
    stream.assert_same_memory(loaded, reg)


def test_evaluation_has_no_penalty(tmp_path):
    model = Net()
    reg = stream.regulariser(model)
    fit = trainer(model, 0, tmp_path, reg)
    fit.train()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.2)
        mean = F.cross_entropy(model.network(stream.task(0).tensors[0]), stream.task(0).tensors[1])
    assert reg.penalty() > 0
    assert fit.evaluate(dataset(0))["eval_loss"] == pytest.approx(mean.item(), rel=1e-5)
