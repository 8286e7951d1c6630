"""skorch: a callback adds the penalty's gradient and ends the task after each `partial_fit`."""

from collections.abc import Callable
from typing import Any

from torch import nn

from fromp.foundation.errors import FrompError, install
from fromp.protocol import Regulariser

try:
    from skorch.callbacks import Callback
except ImportError as error:
    raise FrompError(f"skorch is not installed; {install('skorch')}.") from error


class RegulariserCallback(Callback):
    """Adds the gradient of `penalty()` after every backward pass, and ends a task when a `partial_fit` has trained.

        NeuralNetClassifier(network, callbacks=[RegulariserCallback(lambda module: FROMP(module, Categorical()))])

    make: the regulariser of a module, which skorch builds first. It is made anew with the module, as `fit` does.
    how: further arguments of `end_task`, such as head=[2, 3].
    """

    regulariser_: Regulariser

    def __init__(self, make: Callable[[nn.Module], Regulariser], **how: Any) -> None:
        self.make, self.how = make, how

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """What scikit-learn's `clone` copies."""
        return {"make": self.make, **self.how}

    def on_train_begin(self, net: Any, **kwargs: Any) -> None:
        """Regularise the module, if it is not the one that is regularised already."""
        if not hasattr(self, "regulariser_") or self.regulariser_.model is not net.module_:
            self.regulariser_ = self.make(net.module_)

    def on_grad_computed(self, net: Any, training: bool = False, **kwargs: Any) -> None:
        """Add to the gradients; callbacks that clip stand behind this one."""
        if training:
            self.regulariser_.penalty().backward()

    def on_train_end(self, net: Any, X: Any = None, y: Any = None, **kwargs: Any) -> None:
        """All that was given to `fit` or `partial_fit` is a task."""
        self.regulariser_.end_task(X if y is None else (X, y), **self.how)
