"""The plugin in a stand-in that calls plugins in Avalanche's order, because Avalanche needs torchvision."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from oracles import stream
from torch.utils.data import DataLoader, Dataset

from fromp import FrompError
from fromp.integrations.avalanche import RegulariserPlugin


class Triples(Dataset):
    """An experience's data: input, label, task label."""

    def __init__(self, k):
        self.data, self.k = stream.task(k), k

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        x, y = self.data[index]
        return x, int(y), self.k


class Naive:
    """The events of SupervisedTemplate (avalanche-lib 0.6), in order, for each plugin that has a method for one."""

    def __init__(self, model, plugins, head=slice(None)):
        self.model, self.plugins, self.head = model, plugins, head
        self.experience, self.loss, self.events = None, torch.zeros(1), []
        self.named = {}  # arguments of the model's forward

    def trigger(self, event):
        self.events.append(event)
        for plugin in self.plugins:
            if hasattr(plugin, event):
                getattr(plugin, event)(self)

    def train(self, k):
        self.trigger("before_training")
        self.experience = SimpleNamespace(dataset=Triples(k))
        for event in ("before_train_dataset_adaptation", "after_train_dataset_adaptation"):
            self.trigger(event)
        self.optimizer = torch.optim.Adam(self.model.parameters(), stream.LR)
        self.trigger("before_training_exp")
        for _ in range(stream.EPOCHS):
            self.trigger("before_training_epoch")
            for batch in DataLoader(self.experience.dataset, stream.BATCH):
                self.mb_x, self.mb_y, _t = batch
                self.trigger("before_training_iteration")
                self.optimizer.zero_grad()
                self.loss = torch.zeros(1)
                self.trigger("before_forward")
                output = self.model(self.mb_x, **self.named)
                self.trigger("after_forward")
                self.loss += F.cross_entropy(output[:, self.head], self.mb_y)
                self.trigger("before_backward")
                self.loss.backward()
                self.trigger("after_backward")
                self.trigger("before_update")
                self.optimizer.step()
                self.trigger("after_update")
                self.trigger("after_training_iteration")
            self.trigger("after_training_epoch")
        self.trigger("after_training_exp")
        self.trigger("after_training")
        self.experience = None


def test_the_bits_of_the_loop_by_hand():
    expected = stream.network()
    kept = stream.by_hand(expected)
    model = stream.network()
    reg = stream.regulariser(model)
    strategy = Naive(model, [RegulariserPlugin(reg)])
    for k in range(stream.TASKS):
        strategy.train(k)
    stream.assert_equal(model, expected)
    stream.assert_same_memory(reg, kept)


def test_mixed_past_is_given_the_minibatch():
    expected = stream.network(9)
    kept = stream.mixed_by_hand(expected)
    model = stream.network(9)
    plugin = RegulariserPlugin(stream.mixed(model))
    strategy = Naive(model, [plugin])
    for k, strategy.head in enumerate(stream.HEADS):
        plugin.how["head"] = strategy.head
        strategy.train(k)
    stream.assert_equal(model, expected)
    stream.assert_same_memory(plugin.regulariser, kept)


def test_a_model_that_is_told_its_task():
    """What `end_task` is told goes to the penalty as well, which passes it to the model."""
    expected = stream.Named()
    kept = stream.mixed(expected)
    for k, name in enumerate(stream.NAMES):
        optimizer = torch.optim.Adam(expected.parameters(), stream.LR)
        for _ in range(stream.EPOCHS):
            for x, y in stream.loader(k):
                optimizer.zero_grad()
                (F.cross_entropy(expected(x, name), y) + kept.penalty(x, task=name)).backward()
                optimizer.step()
        kept.end_task(stream.loader(k), task=name)
    model = stream.Named()
    plugin = RegulariserPlugin(stream.mixed(model))
    strategy = Naive(model, [plugin])
    for k, name in enumerate(stream.NAMES):
        plugin.how["task"] = strategy.named["task"] = name
        strategy.train(k)
    stream.assert_equal(model, expected)
    stream.assert_same_memory(plugin.regulariser, kept)


def test_every_event_of_the_plugin_is_one_of_the_strategy():
    """Avalanche warns of a plugin that has others."""
    strategy = Naive(stream.network(), [])
    strategy.train(0)
    own = {name for name in dir(RegulariserPlugin) if name.startswith(("before", "after"))}
    assert own
    assert own <= set(strategy.events)


def test_another_model_is_refused():
    strategy = Naive(stream.network(), [RegulariserPlugin(stream.regulariser(stream.network()))])
    with pytest.raises(FrompError, match="model, a Sequential, is no part of the Sequential that is trained"):
        strategy.train(0)


def test_arguments_of_end_task_are_passed_on():
    model = stream.network()
    reg = stream.regulariser(model)
    Naive(model, [RegulariserPlugin(reg, head=[2, 1, 0])]).train(0)
    assert reg.memories[0].head == (2, 1, 0)
