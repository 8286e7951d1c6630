"""Avalanche: a plugin, recognised by its methods, so that Avalanche need not be imported."""

from typing import Any, final

from torch.utils.data import DataLoader, Dataset

from fromp.integrations.part import check_trained, part_of, penalty_in
from fromp.protocol import Regulariser


class RegulariserPlugin:
    """Adds the penalty to the loss of every minibatch, and ends the task after each experience.

        reg = FROMP(model, Categorical())
        Naive(model=model, optimizer=optimizer, criterion=criterion, plugins=[RegulariserPlugin(reg)])

    how: further arguments of `end_task`. They can change between experiences: `plugin.how["head"] = [2, 3]`.
    """

    supports_distributed = True

    def __init__(self, regulariser: Regulariser, **how: Any) -> None:
        self.regulariser, self.how = regulariser, how

    def before_backward(self, strategy: Any, **kwargs: Any) -> None:
        """The strategy's loss is that of its minibatch; it calls this just before it goes back."""
        check_trained(strategy.model, self.regulariser)
        strategy.loss = strategy.loss + penalty_in(self.regulariser, lambda: strategy.mb_x, self.how)

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """The experience's own data are the task, without what other plugins have mixed in, such as replay."""
        data = part_of(DataLoader(Pairs(strategy.experience.dataset)), self.regulariser)
        self.regulariser.end_task(data, **self.how)


@final
class Pairs(Dataset):
    """Inputs and labels of a dataset that gives task labels, or more, behind them."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        x, y, *_ = self._dataset[index]
        return x, y
