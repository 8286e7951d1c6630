"""Lightning's loop, with the callback, ends with the bits of the loop by hand."""

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from oracles import stream

from fromp import CheckpointError, FrompError

pytestmark = pytest.mark.slow


def module(network, head=slice(None)):
    from lightning.pytorch import LightningModule

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.network = network

        def training_step(self, batch):
            x, y = batch
            return F.cross_entropy(self.network(x)[:, head], y)

        def configure_optimizers(self):
            return torch.optim.Adam(self.network.parameters(), stream.LR)

    return Module()


def trainer(folder, *callbacks, **options):
    from lightning.pytorch import Trainer

    options = {"max_epochs": stream.EPOCHS, "accelerator": "cpu", "devices": 1, **options}
    return Trainer(
        default_root_dir=folder, callbacks=list(callbacks), logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, **options,
    )  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"accumulated": 3}, {"clip": 0.05}, {"accumulated": 2, "clip": 0.1}], ids=str)
def test_the_bits_of_the_loop_by_hand(tmp_path, options):
    from fromp.integrations.lightning import RegulariserCallback

    expected = stream.network()
    kept = stream.by_hand(expected, **options)
    network = stream.network()
    reg = stream.regulariser(network)
    for k in range(stream.TASKS):
        trainer(
            tmp_path,
            RegulariserCallback(reg),
            accumulate_grad_batches=options.get("accumulated", 1),
            gradient_clip_val=options.get("clip"),
        ).fit(module(network), stream.loader(k))
    stream.assert_equal(network, expected)
    stream.assert_same_memory(reg, kept)


def test_another_model_is_refused(tmp_path):
    from fromp.integrations.lightning import RegulariserCallback

    callback = RegulariserCallback(stream.regulariser(stream.network()))
    with pytest.raises(FrompError, match="model, a Sequential, is no part of the Module that is trained"):
        trainer(tmp_path, callback).fit(module(stream.network()), stream.loader(0))


def test_mixed_past_is_given_the_minibatch(tmp_path):
    from fromp.integrations.lightning import RegulariserCallback

    expected = stream.network(9)
    kept = stream.mixed_by_hand(expected)
    network = stream.network(9)
    reg = stream.mixed(network)
    for k, head in enumerate(stream.HEADS):
        callback = RegulariserCallback(reg, head=head)
        trainer(tmp_path, callback).fit(module(network, head), stream.loader(k))
    stream.assert_equal(network, expected)
    stream.assert_same_memory(reg, kept)


@pytest.mark.parametrize("make", [stream.regulariser, stream.mixed])
def test_double_precision(tmp_path, make):
    """The first fit is in single precision: what is kept follows the model."""
    from fromp.integrations.lightning import RegulariserCallback

    network = stream.network()
    reg = make(network)
    for k in range(2):
        trainer(tmp_path, RegulariserCallback(reg), precision=["32-true", "64-true"][k]).fit(
            module(network), stream.loader(k)
        )
    assert reg.memories[1].inputs.dtype == torch.float64
    with torch.no_grad():
        learned = network(reg.memories[0].inputs)
    assert F.cross_entropy(learned, reg.memories[0].labels) < 1.0


def test_heads_are_passed_on(tmp_path):
    from fromp.integrations.lightning import RegulariserCallback

    network = stream.network()
    reg = stream.regulariser(network)
    trainer(tmp_path, RegulariserCallback(reg, head=[2, 0, 1])).fit(module(network), stream.loader(0))
    assert reg.memories[0].head == (2, 0, 1)


class Stop(Exception):
    pass


def test_a_checkpoint_within_a_task_carries_the_memory(tmp_path):
    """A fit that stops in the second task goes on from its checkpoint, in new objects, and ends as if it had not."""
    from lightning.pytorch.callbacks import Callback

    from fromp.integrations.lightning import RegulariserCallback

    expected = stream.network()
    kept = stream.by_hand(expected, tasks=2)
    network = stream.network()
    reg = stream.regulariser(network)
    trainer(tmp_path, RegulariserCallback(reg)).fit(module(network), stream.loader(0))

    class Interrupt(Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            trainer.save_checkpoint(tmp_path / "half.ckpt")
            raise Stop

    with pytest.raises(Stop):
        trainer(tmp_path, RegulariserCallback(reg), Interrupt()).fit(module(network), stream.loader(1))
    assert len(reg.memories) == 1  # what was interrupted is no finished task

    fresh = copy.deepcopy(stream.network())
    other = stream.regulariser(fresh)
    trainer(tmp_path, RegulariserCallback(other)).fit(
        module(fresh), stream.loader(1), ckpt_path=tmp_path / "half.ckpt", weights_only=True
    )
    stream.assert_equal(fresh, expected)
    stream.assert_same_memory(other, kept)


def test_load_from_checkpoint_brings_the_memory_back(tmp_path):
    from fromp.integrations.lightning import RegulariserCallback

    network = stream.network()
    reg = stream.regulariser(network)
    fit = trainer(tmp_path, RegulariserCallback(reg))
    fit.fit(module(network), stream.loader(0))
    fit.save_checkpoint(tmp_path / "end.ckpt")
    loaded = stream.network()
    loaded.load_state_dict(network.state_dict())
    other = stream.regulariser(loaded)
    RegulariserCallback(other).load_from_checkpoint(tmp_path / "end.ckpt")
    stream.assert_same_memory(other, reg)
    assert other.penalty().item() == 0

    bare = trainer(tmp_path)
    bare.fit(module(network), stream.loader(0))
    bare.save_checkpoint(tmp_path / "bare.ckpt")
    with pytest.raises(CheckpointError, match="holds no memory: it was saved without this callback"):
        RegulariserCallback(other).load_from_checkpoint(tmp_path / "bare.ckpt")
    (tmp_path / "damaged.ckpt").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"cannot read .*damaged.ckpt"):
        RegulariserCallback(other).load_from_checkpoint(tmp_path / "damaged.ckpt")
    for number, foreign in enumerate(([1, 2], {"callbacks": 3})):
        torch.save(foreign, tmp_path / f"{number}.ckpt")
        with pytest.raises(CheckpointError, match="is not a checkpoint of Lightning"):
            RegulariserCallback(other).load_from_checkpoint(tmp_path / f"{number}.ckpt")
    torch.save({"callbacks": {"a": Path}}, tmp_path / "code.ckpt")
    with pytest.raises(CheckpointError, match=r"cannot read .*code.ckpt"):
        RegulariserCallback(other).load_from_checkpoint(tmp_path / "code.ckpt")
