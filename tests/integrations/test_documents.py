"""The blocks of docs/library/integrations.md run, and add as few lines to a script as they say."""

import re
from pathlib import Path

import pytest
import torch
from oracles import stream
from torch import nn

from fromp import FROMP, Categorical

PAGE = Path(__file__).parents[2] / "docs/library/integrations.md"
BLOCKS = dict(re.findall(r"^```python (\w+)\n(.*?)^```$", PAGE.read_text(), re.M | re.S))
MOST = {"lightning": 3, "transformers": 4, "accelerate": 4, "skorch": 3, "avalanche": 3, "ranks": 3}


def test_a_script_gains_a_few_lines():
    """Each line that needs fromp is marked, and they are no more than promised, the import aside."""
    assert MOST.keys() == BLOCKS.keys()
    for name, block in BLOCKS.items():
        lines = block.splitlines()
        marked = [line for line in lines if line.endswith("# +")]
        assert 1 <= len(marked) <= MOST[name], name
        ours = re.compile(r"\breg\b|Regularis|FROMP|Categorical|end_task|prepared")
        unmarked = [line for line in lines if ours.search(line) and line not in marked and "import" not in line]
        assert not unmarked, name


def run(name, **given):
    names = {"FROMP": FROMP, "Categorical": Categorical, **given}
    exec(compile(BLOCKS[name], name, "exec"), names)
    return names


def tasks():
    return [stream.loader(k) for k in range(2)]


@pytest.mark.slow
def test_lightning(tmp_path, monkeypatch):
    from integrations.test_lightning import module
    from lightning.pytorch import Trainer

    monkeypatch.chdir(tmp_path)
    found = run("lightning", module=module(stream.network()), Trainer=Trainer, tasks=tasks())
    assert len(found["reg"].memories) == 2


@pytest.mark.slow
def test_transformers(tmp_path):
    from integrations.test_transformers import Net, dataset
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(output_dir=str(tmp_path), report_to=[], use_cpu=True, save_strategy="no")
    given = {"model": Net(), "arguments": arguments, "Trainer": Trainer, "tasks": [dataset(k) for k in range(2)]}
    assert len(run("transformers", **given)["reg"].memories) == 2


@pytest.mark.slow
def test_accelerate():
    from accelerate import Accelerator

    given = {"accelerator": Accelerator(cpu=True), "model": stream.network(), "tasks": tasks()}
    found = run("accelerate", Adam=torch.optim.Adam, cross_entropy=nn.functional.cross_entropy, **given)
    assert len(found["reg"].memories) == 2


@pytest.mark.slow
def test_skorch():
    from skorch import NeuralNetClassifier

    given = {"network": stream.network(), "tasks": [stream.task(k).tensors for k in range(2)]}
    found = run("skorch", NeuralNetClassifier=NeuralNetClassifier, CrossEntropyLoss=nn.CrossEntropyLoss, **given)
    assert len(found["net"].callbacks_[-2][1].regulariser_.memories) == 2


def test_avalanche():
    from integrations.test_avalanche import Naive

    model = stream.network()

    def naive(model, optimizer, criterion, plugins):
        return Naive(model, plugins)

    given = {"optimizer": None, "CrossEntropyLoss": nn.CrossEntropyLoss, "stream": range(2)}
    assert len(run("avalanche", model=model, Naive=naive, **given)["reg"].memories) == 2


def test_ranks():
    """With a process group of one rank; tests/oracles/ranks.py takes the same steps with more."""
    found = run(
        "ranks",
        network=stream.network(),
        DistributedDataParallel=lambda model: model,
        cross_entropy=nn.functional.cross_entropy,
        loader=stream.loader(0),
        **dict(zip("xy", stream.task(0).tensors, strict=True)),
    )
    assert len(found["reg"].memories) == 1
