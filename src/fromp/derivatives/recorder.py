"""What applies parameters in a forward pass, seen while it happens."""

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fromp.derivatives.calls import Call, ConvCall, EmbeddingCall, Geometry, LinearCall, ScaleCall


class Recorder(TorchFunctionMode):
    """Sees every torch function that a forward pass calls, and notes those that apply parameters to a batch."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.batch = batch
        self.calls: list[Call] = []
        self._open: list[Callable] = []

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _COMPOSED and func not in self._open:
            return self._opened(func, args, kwargs)
        result = func(*args, **kwargs)
        bind = _BINDERS.get(func)
        if bind is None or not isinstance(result, Tensor) or not result.requires_grad:
            return result
        try:
            call = bind(self, result, *args, **kwargs)
        except TypeError:  # arguments that the binder does not know: left to the slow path
            return result
        if call is None or not call.parameters or not call.layouts:
            return result
        self.calls.append(call)
        # Writing on a view moves the history of what it is a view of, past the edge that was noted.
        return result.clone() if result._is_view() else result

    def _opened(self, func: Callable, args: Any, kwargs: Any) -> Any:
        """The result of a function of torch's that calls layers, which are seen.

        Such a function hands itself over to the mode whole, which here it must not.
        """
        assert isinstance(func, FunctionType)
        around = {**func.__globals__, "has_torch_function": lambda _: False}
        inner = FunctionType(func.__code__, around, func.__name__, func.__defaults__, func.__closure__)
        inner.__kwdefaults__ = func.__kwdefaults__
        self._open.append(func)
        try:
            with self:
                return inner(*args, **kwargs)
        finally:
            self._open.remove(func)

    def linear(self, z: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Call | None:
        return LinearCall(z, input, weight, bias, self.batch) if input.ndim > 1 and weight.ndim == 2 else None

    def matmul(self, z: Tensor, input: Tensor, other: Tensor) -> Call | None:
        return (
            LinearCall(z, input, other, None, self.batch, swapped=True) if input.ndim > 1 and other.ndim == 2 else None
        )

    def addmm(self, z: Tensor, bias: Tensor, input: Tensor, weight: Tensor) -> Call | None:
        return LinearCall(z, input, weight, bias, self.batch, swapped=True) if bias.ndim == 1 else None

    def conv(
        self,
        z: Tensor,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Call | None:
        n = weight.ndim - 2
        if input.ndim != weight.ndim:
            return None
        padding = padding if isinstance(padding, str) else _tuple(padding, n)
        geometry = Geometry(_tuple(stride, n), padding, _tuple(dilation, n), groups)
        return ConvCall(z, input, weight, bias, geometry, self.batch)

    def embedding(
        self,
        z: Tensor,
        input: Tensor,
        weight: Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Call | None:
        if max_norm is not None or scale_grad_by_freq:  # the one writes on the weight, the other is no derivative
            return None
        return EmbeddingCall(z, input, weight, padding_idx, self.batch)

    def layer_norm(
        self,
        z: Tensor,
        input: Tensor,
        normalized_shape: Any,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Call:
        n = F.layer_norm(input.detach(), normalized_shape, None, None, eps)
        axes = range(z.ndim - len(normalized_shape))
        return ScaleCall(z, n, weight, bias, normalized_shape, axes, self.batch)

    def rms_norm(
        self, z: Tensor, input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None
    ) -> Call:
        n = F.rms_norm(input.detach(), normalized_shape, None, eps)
        axes = range(z.ndim - len(normalized_shape))
        return ScaleCall(z, n, weight, None, normalized_shape, axes, self.batch)

    def group_norm(
        self,
        z: Tensor,
        input: Tensor,
        num_groups: int,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Call | None:
        return self._channels(z, F.group_norm(input.detach(), num_groups, None, None, eps), weight, bias)

    def batch_norm(
        self,
        z: Tensor,
        input: Tensor,
        mean: Tensor | None,
        var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Call | None:
        if training:  # the batch's own statistics make its examples depend on each other
            return None
        n = F.batch_norm(input.detach(), mean, var, None, None, False, momentum, eps)
        return self._channels(z, n, weight, bias)

    def prelu(self, z: Tensor, input: Tensor, weight: Tensor) -> Call | None:
        return self._channels(z, input.detach().clamp(max=0), weight, None)

    def multiply(self, z: Tensor, input: Any, other: Any) -> Call | None:
        for n, scale in ((input, other), (other, input)):
            if isinstance(n, Tensor) and (axes := self._stretched(scale, z)):
                return ScaleCall(z, n.detach(), scale, None, scale.shape, axes, self.batch)
        return None

    def add(self, z: Tensor, input: Any, other: Any) -> Call | None:
        if z is input and z._is_view():  # written on in place: what it is a view of has changed, past z
            return None
        for shift in (input, other):
            if axes := self._stretched(shift, z):
                return ScaleCall(z, None, None, shift, shift.shape, axes, self.batch)
        return None

    def expand(self, z: Tensor, input: Tensor, *sizes: Any) -> Call | None:
        return self.add(z, None, input)

    def _stretched(self, parameter: Any, z: Tensor) -> list[int]:
        """The axes along which a parameter is stretched to z's shape: the examples lie along one of them."""
        if not isinstance(parameter, Tensor) or not parameter.requires_grad or parameter.ndim > z.ndim:
            return []
        if self.batch == 1 and not parameter.is_leaf:  # what is computed from the example looks stretched too
            return []
        shape = (1,) * (z.ndim - parameter.ndim) + tuple(parameter.shape)
        return [axis for axis, n in enumerate(shape) if n == 1]

    def _channels(self, z: Tensor, n: Tensor, scale: Tensor | None, shift: Tensor | None) -> Call | None:
        """One number for each channel, which is the second axis."""
        one = scale if scale is not None else shift
        if one is None:
            return None
        return ScaleCall(z, n, scale, shift, (one.numel(), *(1,) * (z.ndim - 2)), (0,), self.batch)


_BINDERS: dict[Callable, Callable[..., Call | None]] = {
    F.linear: Recorder.linear,
    torch.matmul: Recorder.matmul,
    torch.mm: Recorder.matmul,
    Tensor.matmul: Recorder.matmul,
    Tensor.__matmul__: Recorder.matmul,
    torch.addmm: Recorder.addmm,
    F.conv1d: Recorder.conv,
    F.conv2d: Recorder.conv,
    F.conv3d: Recorder.conv,
    F.embedding: Recorder.embedding,
    F.layer_norm: Recorder.layer_norm,
    F.group_norm: Recorder.group_norm,
    F.batch_norm: Recorder.batch_norm,
    F.rms_norm: Recorder.rms_norm,
    torch.prelu: Recorder.prelu,
    torch.mul: Recorder.multiply,
    Tensor.mul: Recorder.multiply,
    torch.add: Recorder.add,
    Tensor.add: Recorder.add,
    Tensor.add_: Recorder.add,
    Tensor.expand: Recorder.expand,
    Tensor.expand_as: Recorder.expand,
}
_COMPOSED: tuple[Callable, ...] = (F.multi_head_attention_forward,)


def _tuple(value: Any, n: int) -> tuple[int, ...]:
    return (value,) * n if isinstance(value, int) else tuple(value) * (n if len(value) == 1 else 1)
