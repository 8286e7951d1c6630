"""The networks that are measured, with their minibatches and their memories."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fromp import gp
from fromp.derivatives.budget import points_per_pass
from fromp.derivatives.model import evaluating
from fromp.lab.benchmarks.networks import cifar_cnn
from fromp.learn.networks import initialise, mlp
from fromp.likelihoods import Categorical
from fromp.memory import Memory
from fromp.metrics.full_kernel import FullKernel
from fromp.prior import Anchor, FunctionalPrior

POINTS, CLASSES = 200, 10


class Case:
    """A network with its minibatch, as in the paper's experiments."""

    def __init__(self, name: str, batch_size: int, shape: tuple[int, ...], network: Callable[[], nn.Module]) -> None:
        self.name, self.batch_size, self.shape = name, batch_size, shape
        self.model = initialise(network, seed=0).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-6, fused=True)
        self.generator = torch.Generator().manual_seed(0)

    def images(self, n: int) -> Tensor:
        """Random inputs of this network."""
        x = torch.rand(n, *self.shape, generator=self.generator)
        return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x

    def labels(self, n: int) -> Tensor:
        """Random labels."""
        return torch.randint(CLASSES, (n,), generator=self.generator)

    def points_per_pass(self) -> int:
        """As `FROMP` chooses it."""
        return points_per_pass(self.model, [(self.images(2), None)])

    def prior(self, tasks: int) -> FunctionalPrior:
        """A prior on random memories, with kernels of the right size; a step's cost does not depend on their values."""
        anchors = []
        for _ in range(tasks):
            memory = Memory(self.images(POINTS), self.labels(POINTS), torch.zeros(POINTS), None, torch.arange(POINTS))
            root = torch.randn(CLASSES, POINTS, POINTS, generator=self.generator) / POINTS
            with evaluating(self.model), torch.no_grad():
                mean = gp.mean(self.model, memory.inputs, Categorical()).T.contiguous()
            anchors.append(Anchor(memory, mean, FullKernel((root @ root.mT)[None])))
        return FunctionalPrior(anchors, Categorical(), self.points_per_pass())


SETTINGS: dict[str, Callable[[], Case]] = {
    "mlp": lambda: Case("mlp", 128, (784,), lambda: mlp(784, (100, 100), CLASSES)),
    "cnn": lambda: Case("cnn", 256, (3, 32, 32), lambda: cifar_cnn(CLASSES)),
}
THREADS = {"mlp": 1, "cnn": torch.get_num_threads()}
PAST_TASKS = {"mlp": (1, 3, 5, 9, 20), "cnn": (1, 2, 3, 4, 5)}
