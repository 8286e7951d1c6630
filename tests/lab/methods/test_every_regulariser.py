"""Every method that is only a penalty goes into anyone's loop in the same three lines."""

import pytest
import torch
from oracles.small import data, network
from torch import nn
from torch.nn.functional import cross_entropy

from fromp import FROMP, Categorical, HalfKernel, IdentityKernel, MixedPast, Regulariser
from fromp.foundation import storage
from fromp.lab.methods.quadratic import DLP, EWC
from fromp.lab.methods.rehearsal import DERpp, FunctionalL2, Replay
from fromp.lab.methods.si import SI

REGULARISERS = {
    "fromp": lambda model: FROMP(model, Categorical(), tau=1.0, memory_size=6, jitter=1e-2),
    "fromp-l2": lambda model: FROMP(model, Categorical(), tau=1.0, memory_size=6, kernel=IdentityKernel),
    "half": lambda model: FROMP(model, Categorical(), tau=1.0, memory_size=6, jitter=1e-2, kernel=HalfKernel),
    "ewc": lambda model: EWC(model, Categorical(), 100.0),
    "dlp": lambda model: DLP(model, Categorical(), 100.0),
    "si": lambda model: SI(model, Categorical(), 10.0, 1e-3),
    "functional-l2": lambda model: FunctionalL2(model, Categorical(), 6, 0.1, 0),
    "replay": lambda model: Replay(model, Categorical(), 6, 6, 1.0, 0),
    "mixed-past": lambda model: MixedPast(
        model, Categorical(), 6, 0.1, 0.1, label_strength=0.1, weight_strength=1.0, points_per_step=8
    ),
    "der++": lambda model: DERpp(model, Categorical(), 6, 6, 1.0, 1.0, 0),
}


def learn(reg: Regulariser, model: nn.Module, tasks: range, steps: int = 30) -> None:
    """A loop that knows nothing of the method, but that SI has one line more."""
    for task in tasks:
        x, y = data(task)
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        for _ in range(steps):
            loss = cross_entropy(model(x)[:, :2], y) + reg.penalty()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if isinstance(reg, SI):
                reg.after_step()
        reg.end_task((x, y), head=[0, 1])


@pytest.mark.parametrize("name", REGULARISERS)
def test_it_is_a_regulariser_that_costs_nothing_first_and_holds_later(name):
    model = network()
    reg = REGULARISERS[name](model)
    assert isinstance(reg, Regulariser)
    assert reg.penalty().item() == 0
    learn(reg, model, range(2))
    with torch.no_grad():
        model[0].weight += 0.3
    penalty = reg.penalty()
    penalty.backward()
    assert penalty.item() > 0
    assert any(bool(w.grad.any()) for w in model.parameters())


@pytest.mark.parametrize("name", REGULARISERS)
def test_its_state_goes_through_a_file(name, tmp_path):
    model, other = network(), network(seed=3)
    reg, again = REGULARISERS[name](model), REGULARISERS[name](other)
    learn(reg, model, range(2))
    storage.write(tmp_path, "test", reg.state_dict())
    other.load_state_dict(model.state_dict())
    again.load_state_dict(storage.read(tmp_path, "test"))
    for one, its in ((reg, model), (again, other)):
        learn(one, its, range(2, 3))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
