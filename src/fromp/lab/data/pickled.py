"""Reads the CIFAR python batches without unpickling: nothing in the file is ever called or imported."""

import pickletools
from dataclasses import dataclass
from typing import Any

from fromp.foundation.errors import DataError


@dataclass(frozen=True)
class Bytes2D:
    """A stored numpy array of bytes: `data` is row-major (rows, columns)."""

    rows: int
    columns: int
    data: bytes


def read_batch(raw: bytes) -> dict[str, Any]:
    """The dict in a pickle of strings, integers, lists and 2-D arrays of bytes; anything else is refused."""
    try:
        batch = _interpret(raw)
    except (IndexError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"not a readable CIFAR python batch ({error}); use the binary version instead.") from error
    if not isinstance(batch, dict):
        raise DataError(f"a CIFAR python batch holds a dict, not a {type(batch).__name__}; use the binary version.")
    return {key: value.finished() if isinstance(value, _Array) else value for key, value in batch.items()}


class _Mark:
    """Where a MARK opcode was met."""


@dataclass(frozen=True)
class _Name:
    """A global that numpy's pickles mention; a name to compare with, never looked up."""

    path: str


class _Dtype:
    """The dtype of single bytes."""


@dataclass
class _Array:
    """An array whose contents arrive with its BUILD opcode."""

    contents: Bytes2D | None = None

    def finished(self) -> Bytes2D:
        if self.contents is None:
            raise DataError("a CIFAR python batch holds an array without contents; use the binary version instead.")
        return self.contents


_NAMES = {
    "numpy.core.multiarray _reconstruct": _Name("reconstruct"),
    "numpy._core.multiarray _reconstruct": _Name("reconstruct"),
    "numpy ndarray": _Name("ndarray"),
    "numpy dtype": _Name("dtype"),
    "_codecs encode": _Name("encode"),
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_LITERALS = {
    *("BININT", "BININT1", "BININT2", "LONG1", "INT"),
    *("BINSTRING", "SHORT_BINSTRING", "BINUNICODE", "BINBYTES", "SHORT_BINBYTES"),
}


def _interpret(raw: bytes) -> Any:
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    argument: Any
    for opcode, argument, position in pickletools.genops(raw):
        match opcode.name:
            case "PROTO":
                pass
            case "STOP":
                return stack.pop()
            case name if name in _LITERALS:
                stack.append(argument)
            case name if name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_TUPLE":
                stack.append(())
            case "MARK":
                stack.append(_Mark())
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                items = _pop(stack, int(opcode.name[-1]))
                stack.append(tuple(items))
            case "TUPLE":
                items = _pop_to_mark(stack)
                stack.append(tuple(items))
            case "APPEND":
                _list(stack[-2]).append(stack.pop())
            case "APPENDS":
                items = _pop_to_mark(stack)
                _list(stack[-1]).extend(items)
            case "SETITEM":
                _set_items(stack, _pop(stack, 2))
            case "SETITEMS":
                _set_items(stack, _pop_to_mark(stack))
            case "GLOBAL" if argument in _NAMES:
                stack.append(_NAMES[argument])
            case "REDUCE":
                called, arguments = _pop(stack, 2)
                stack.append(_reduce(called, arguments))
            case "BUILD":
                built, state = _pop(stack, 2)
                stack.append(_build(built, state))
            case name:
                raise DataError(
                    f"refused {name} {str(argument)[:60]!r} at byte {position}: a CIFAR python batch "
                    "has only strings, integers, lists and arrays of bytes; use the binary version instead."
                )
    raise ValueError("it has no end")


def _pop(stack: list[Any], count: int) -> list[Any]:
    if len(stack) < count:
        raise IndexError("its stack is empty")
    items = stack[-count:]
    del stack[-count:]
    return items


def _pop_to_mark(stack: list[Any]) -> list[Any]:
    mark = max(index for index, item in enumerate(stack) if isinstance(item, _Mark))
    items = stack[mark + 1 :]
    del stack[mark:]
    return items


def _list(item: Any) -> list[Any]:
    if not isinstance(item, list):
        raise ValueError(f"it appends to a {type(item).__name__}")
    return item


def _set_items(stack: list[Any], items: list[Any]) -> None:
    if not isinstance(stack[-1], dict) or len(items) % 2:
        raise ValueError("it sets items outside a dict")
    stack[-1].update((_text(key), value) for key, value in zip(items[::2], items[1::2], strict=True))


def _text(key: Any) -> str:
    return key.decode("latin-1") if isinstance(key, bytes) else str(key)


def _reduce(called: Any, arguments: tuple[Any, ...]) -> Any:
    """What numpy's own pickles would have called, by comparison: an empty array, the byte dtype, or bytes."""
    match called, arguments:
        case _Name("reconstruct"), (_Name("ndarray"), (0,), str() | bytes()):
            return _Array()
        case _Name("dtype"), ("u1" | "|u1", *_):
            return _Dtype()
        case _Name("encode"), (str(text), "latin1"):
            return text.encode("latin-1")
        case _:
            raise DataError(
                f"refused a call of {called} with {str(arguments)[:60]}: a CIFAR python batch has only "
                "arrays of bytes; use the binary version instead."
            )


def _build(built: Any, state: Any) -> Any:
    match built, state:
        case _Dtype(), tuple():
            return built
        case _Array(), (_, (int(rows), int(columns)), _Dtype(), by_column, str() | bytes() as data):
            raw = data.encode("latin-1") if isinstance(data, str) else data
            if len(raw) != rows * columns:
                raise ValueError(f"an array of {rows} x {columns} bytes has {len(raw)}")
            if by_column:
                raw = b"".join(raw[row::rows] for row in range(rows))
            built.contents = Bytes2D(rows, columns, raw)
            return built
        case _:
            raise DataError(
                f"refused the contents of a {type(built).__name__.strip('_')}: a CIFAR python batch has only "
                "2-D arrays of bytes; use the binary version instead."
            )
