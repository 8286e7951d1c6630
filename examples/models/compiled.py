"""A compiled model, saved after the first task and loaded into one that is not compiled: names carry no prefix."""

import sys
import tempfile

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from two_tasks import CLASSES, FEATURES, SETTINGS, Result, blobs, fit, follow, share, show

from fromp import FROMP, Categorical


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def run(hold: bool, backend: str = "inductor") -> Result:
    torch.manual_seed(0)
    tasks, model = [blobs(0), blobs(1)], torch.compile(network(), backend=backend)
    reg = FROMP(model, Categorical(), **SETTINGS)

    def learn(number: int) -> None:
        nonlocal model, reg
        x, y, *_ = tasks[number]
        if number:  # another process, another month
            with tempfile.TemporaryDirectory() as folder:
                reg.save(folder)
                plain = network()
                plain.load_state_dict({name.removeprefix("_orig_mod."): w for name, w in model.state_dict().items()})
                model, reg = plain, FROMP.load(folder, plain)

        def loss(batch: Tensor) -> Tensor:
            nll = cross_entropy(model(x[batch]), y[batch])
            return nll + reg.penalty() if hold else nll

        fit(loss, model.parameters(), len(y))
        reg.end_task(x, y)

    return follow(tasks, learn, lambda number: share(model(tasks[number].test_x), tasks[number].test_y))


if __name__ == "__main__":
    show(lambda hold: run(hold, *sys.argv[1:]))
