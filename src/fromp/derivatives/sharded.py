"""Weights that FSDP2 has split over processes, whole for a while."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from torch import Tensor, nn

from fromp.derivatives.model import named_weights
from fromp.foundation.errors import DerivativeError

Method = TypeVar("Method", bound=Callable[..., Any])


def is_split(weight: Tensor) -> bool:
    """Whether this rank holds only a part of it."""
    return hasattr(weight, "full_tensor")


def whole(weight: Tensor) -> Tensor:
    """The weight itself, gathered on every rank if it is split."""
    return weight.full_tensor() if is_split(weight) else weight  # type: ignore[attr-defined]


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Every weight whole on this rank inside, gathered module by module; derivatives need them all at once.

    FSDP2's hooks would split them again after each forward and backward pass, so that they rest meanwhile.
    """
    parts = [module for module in model.modules() if _is_sharded(module)]
    hooks = [(part, part._forward_pre_hooks.copy(), part._forward_hooks.copy()) for part in parts]
    try:
        for part in parts:
            cast(Any, part).unshard()
            state = cast(Any, part)._get_fsdp_state()
            part._forward_pre_hooks.pop(state._pre_forward_hook_handle.id, None)
            part._forward_hooks.pop(state._post_forward_hook_handle.id, None)
        for name, weight in named_weights(model).items():
            if is_split(weight):
                raise DerivativeError(
                    f"'{name}' is split over ranks by something other than fully_shard, such as tensor parallelism, "
                    "and cannot be gathered here; end the task with a model whose weights are whole."
                )
        yield
    finally:
        for part, before, after in hooks:
            _put_back(part._forward_pre_hooks, before)
            _put_back(part._forward_hooks, after)
            cast(Any, part).reshard()


def on_whole_weights(method: Method) -> Method:
    """A method of a regulariser during which the weights of its model are whole."""

    @wraps(method)
    def inside(self: Any, *args: Any, **kwargs: Any) -> Any:
        with gathered(self.model):
            return method(self, *args, **kwargs)

    return cast(Method, inside)


def _put_back(hooks: dict[int, Callable], before: dict[int, Callable]) -> None:
    """The hooks in the order in which they were."""
    hooks.clear()
    hooks.update(before)


def _is_sharded(module: nn.Module) -> bool:
    """Whether `fully_shard` was applied to it, without importing FSDP where nobody uses it."""
    return hasattr(module, "unshard") and hasattr(module, "_get_fsdp_state")
