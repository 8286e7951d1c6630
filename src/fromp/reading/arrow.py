"""Tables from Parquet files, and from datasets as Hugging Face's `datasets` saves them to disk."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fromp.foundation.errors import DataError, install
from fromp.foundation.storage import open_file
from fromp.reading import LARGEST
from fromp.reading.columns import Arrays, Column, Numbers, Table, Text
from fromp.reading.images import Encoded, read_pixels

STATE, INFO, SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
LARGEST_JSON = 2**24  # bytes
ROWS, FEW_ROWS = 65_536, 64  # read at once; few where a row may hold a file, or a list of texts


def is_saved_dataset(folder: Path) -> bool:
    """Whether `datasets` has saved a dataset, or one with several splits, in a folder."""
    return (folder / STATE).is_file() or (folder / SPLITS).is_file()


def read_parquet(path: str | os.PathLike[str], largest: int = LARGEST) -> Table:
    """The columns of a Parquet file. largest: bytes that they may unpack to."""
    with _arrow_errors(path), open_file(path) as file:
        from pyarrow import parquet

        found = parquet.ParquetFile(file)
        metadata, columns = found.metadata, [found.schema.column(k) for k in range(len(found.schema))]
        chunks = [metadata.row_group(k).column(j) for k in range(metadata.num_row_groups) for j in range(len(columns))]
        stored = sum(max(chunk.total_uncompressed_size, 8 * chunk.num_values) for chunk in chunks)
        _check_size(path, max(stored, 8 * metadata.num_rows * metadata.num_columns), largest)
        # Read as dictionaries: a text that many rows share takes a few bytes in the file, and its length in each row.
        texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
        flat = [column.path for column in columns if column.path in texts and column.max_repetition_level == 0]
        flat = [name for name in flat if name in found.schema_arrow.names]
        found = parquet.ParquetFile(file, read_dictionary=flat)
        rows = ROWS if texts == flat else FEW_ROWS
        batches = _within(path, found.iter_batches(rows, use_threads=False), largest)
        return _table(path, _joined(batches, found.schema_arrow), {}, largest)


def read_saved_dataset(folder: Path, largest: int = LARGEST) -> Table:
    """The columns of a dataset that `save_to_disk` wrote; of several splits, the one named train."""
    if (folder / SPLITS).is_file():
        folder = folder / "train"
        if not (folder / STATE).is_file():
            raise DataError(f"{folder} is not there; name the folder of the split to be read.")
    state, info = _json(folder / STATE), _json(folder / INFO)
    files, features = state.get("_data_files"), info.get("features")
    entries = files if isinstance(files, list) else []
    names = [str(entry.get("filename")) for entry in entries if isinstance(entry, dict)]
    if not names or not all(Path(name).name == name for name in names):
        raise DataError(f"{folder / STATE} does not name its data files; save the dataset again with save_to_disk.")
    if state.get("_indices_data_files"):
        raise DataError(f"{folder} keeps its rows by index; save it after dataset.flatten_indices().")
    _check_size(folder, sum((folder / name).stat().st_size for name in names if (folder / name).exists()), largest)
    with _arrow_errors(folder):
        import pyarrow
        from pyarrow import ipc

        parts, left = [], largest
        for name in names:
            with open_file(folder / name) as file, ipc.open_stream(file) as stream:
                batches = _within(folder, stream, left)
                left -= sum(map(_unpacked, batches))
                parts.append(_joined(batches, stream.schema))
        return _table(folder, pyarrow.concat_tables(parts), features if isinstance(features, dict) else {}, largest)


@contextmanager
def _arrow_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Whatever goes wrong with the file inside is our error."""
    try:
        yield
    except DataError:
        raise
    except ImportError as error:
        raise ImportError(f"{path} needs pyarrow; {install('learn')}.", name=error.name) from error
    except Exception as error:  # pyarrow raises nearly anything
        reason = (str(error).splitlines() or [""])[0][:200] or type(error).__name__
        raise DataError(f"{path} cannot be read: {reason}; write the file again, or as CSV.") from error


def _within(path: str | os.PathLike[str], batches: Iterable[Any], largest: int) -> list[Any]:
    """Batches of rows, as long as all that they unpack to is within the limit."""
    found, size = [], 0
    for batch in batches:
        size += _unpacked(batch)
        _check_size(path, size, largest)
        found.append(batch)
    return found


def _unpacked(batch: Any) -> int:
    """The bytes of a batch of rows, of a dictionary's columns once each row has its text."""
    from pyarrow import compute, types

    size = 0
    for values in batch.columns:
        kind = values.type.value_type if types.is_dictionary(values.type) else None
        if kind is not None and any(
            is_text(kind) for is_text in (types.is_string, types.is_large_string, types.is_binary)
        ):
            lengths = compute.binary_length(values.dictionary)
            size += compute.sum(lengths.take(values.indices)).as_py() or 0
        size += values.indices.nbytes if kind is not None else values.nbytes
    return size


def _joined(batches: list[Any], schema: Any) -> Any:
    import pyarrow

    return pyarrow.Table.from_batches(batches, schema).unify_dictionaries()


def _check_size(path: str | os.PathLike[str], size: int, largest: int) -> None:
    if size > largest:
        raise DataError(f"{path} unpacks to {size} bytes, the limit is {largest}; divide it into smaller months.")


def _json(path: Path) -> dict[str, Any]:
    try:
        with open_file(path) as file:
            text = file.read(LARGEST_JSON + 1)
        found = json.loads(text) if len(text) <= LARGEST_JSON else None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {error}; save the dataset again with save_to_disk.") from error
    if not isinstance(found, dict):
        raise DataError(f"{path} is not a JSON object; save the dataset again with save_to_disk.")
    return found


def _table(path: str | os.PathLike[str], arrow: Any, features: Mapping[str, Any], largest: int) -> Table:
    if len(set(arrow.column_names)) != len(arrow.column_names):
        raise DataError(f"{path} has two columns of one name; give every column a name of its own.")
    origin = os.fspath(path)
    return Table(
        origin,
        {
            name: _column(f"{origin}, column {name!r}", values.combine_chunks(), features.get(name), largest)
            for name, values in zip(arrow.column_names, arrow.columns, strict=True)
        },
    )


def _column(where: str, values: Any, feature: Any, largest: int) -> Column:
    """A column of Arrow as one of ours."""
    from pyarrow import types

    kind = values.type
    if types.is_dictionary(kind):
        values = values.dictionary_decode()
        kind = values.type
    if names := feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None:
        return Text(["" if value is None or value < 0 else str(names[value]) for value in values.to_pylist()])
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return _numbers(values)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_null(kind):
        return Text([(value or "").strip() for value in values.to_pylist()])
    if types.is_temporal(kind):
        return Text(["" if value is None else str(value) for value in values.to_pylist()])
    if types.is_struct(kind) and {"bytes", "path"} == {kind.field(k).name for k in range(kind.num_fields)}:
        return Arrays(_pictures(where, values, largest))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return Arrays(_nested(where, values))
    raise DataError(f"{where} is of the type {kind}; drop it, or save it as numbers, text, lists or images.")


def _numbers(values: Any) -> Column:
    """Numbers, or text where float64 would not tell large whole numbers apart."""
    import pyarrow
    from pyarrow import compute, types

    if types.is_integer(values.type) and values.type.bit_width == 64 and len(values) > values.null_count:
        ends = compute.min_max(values).as_py()
        if max(abs(ends["min"]), abs(ends["max"])) > 2**53:
            return Text(["" if value is None else str(value) for value in values.to_pylist()])
    floats = values.cast(pyarrow.float64(), safe=False)
    return Numbers(torch.from_numpy(floats.to_numpy(zero_copy_only=False).copy()))


def _pictures(where: str, values: Any, largest: int) -> Tensor:
    """Images that are stored as the bytes of their files: uint8 (n, channels, height, width)."""
    data = values.field("bytes").to_pylist()
    missing = next((index for index, part in enumerate(data) if part is None), None)
    if missing is not None or not data:
        raise DataError(f"{where}, row {(missing or 0) + 1}: there is no image in the file; save the images with it.")
    return read_pixels([Encoded(f"{where}, row {index + 1}", part) for index, part in enumerate(data)], largest)


def _nested(where: str, values: Any) -> Tensor:
    """Lists of numbers of one shape: (n, ...)."""
    from pyarrow import types

    shape, parts = [len(values)], values
    while types.is_list(parts.type) or types.is_large_list(parts.type) or types.is_fixed_size_list(parts.type):
        inner = parts.flatten()
        if parts.null_count or not len(parts) or len(inner) % len(parts):
            raise DataError(f"{where} has lists of several lengths; give all the same length.")
        if len(set(parts.value_lengths().to_pylist())) > 1:
            raise DataError(f"{where} has lists of several lengths; give all the same length.")
        shape.append(len(inner) // len(parts))
        parts = inner
    if parts.null_count or not (types.is_integer(parts.type) or types.is_floating(parts.type)):
        raise DataError(f"{where} has lists of {parts.type}, some of them empty; give numbers without gaps.")
    flat = torch.from_numpy(parts.to_numpy(zero_copy_only=False).copy())
    return (flat if flat.dtype == torch.uint8 else flat.to(torch.float32)).view(shape)
