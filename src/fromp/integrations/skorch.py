"""skorch: a callback adds the penalty's gradient and ends the task after each `partial_fit`."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from fromp.foundation.errors import FrompError, install
from fromp.integrations.part import penalty_in
from fromp.protocol import Regulariser

try:
    from skorch.callbacks import Callback
    from skorch.dataset import unpack_data
    from skorch.utils import to_tensor
except ImportError as error:
    raise FrompError(f"skorch is not installed; {install('skorch')}.") from error


class RegulariserCallback(Callback):
    """Adds the gradient of `penalty()` after every backward pass, and ends a task when a `partial_fit` has trained.

        NeuralNetClassifier(network, callbacks=[RegulariserCallback(lambda module: FROMP(module, Categorical()))])

    make: the regulariser of a module, which skorch builds first. It is made anew with the module, as `fit` does.
    how: further arguments of `end_task`, such as head=[2, 3]. They can change between tasks:
        `net.set_params(callbacks__RegulariserCallback__head=[4, 5])`.
    """

    regulariser_: Regulariser

    def __init__(self, make: Callable[[nn.Module], Regulariser], **how: Any) -> None:
        self.make, self.how = make, how

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """What scikit-learn's `clone` copies."""
        return {"make": self.make, **self.how}

    def set_params(self, **params: Any) -> "RegulariserCallback":
        """The same by name, before the next task."""
        self.make = params.pop("make", self.make)
        self.how |= params
        return self

    def on_train_begin(self, net: Any, **kwargs: Any) -> None:
        """Regularise the module, if it is not the one that is regularised already."""
        if not hasattr(self, "regulariser_") or self.regulariser_.model is not net.module_:
            self.regulariser_ = self.make(net.module_)

    def on_grad_computed(self, net: Any, batch: Any = None, training: bool = False, **kwargs: Any) -> None:
        """Add to the gradients; callbacks that clip stand behind this one."""
        if training:
            penalty_in(self.regulariser_, partial(self._inputs, net, batch), self.how).backward()

    def _inputs(self, net: Any, batch: Any) -> Any:
        """What the module is given of a minibatch."""
        return to_tensor(unpack_data(batch)[0], device=net.device)

    def on_train_end(self, net: Any, X: Any = None, y: Any = None, **kwargs: Any) -> None:
        """All that was given to `fit` or `partial_fit` is a task."""
        self.regulariser_.end_task(X if y is None else (X, y), **self.how)
