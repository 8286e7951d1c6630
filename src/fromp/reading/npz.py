"""Arrays of numbers and text from an .npz file, within a limit of bytes and without pickle."""

import math
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fromp.foundation.errors import DataError, install
from fromp.foundation.storage import open_file
from fromp.reading import LARGEST


@contextmanager
def npz_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Whatever goes wrong with the file inside is our error, also while its text is decoded."""
    try:
        yield
    except DataError:
        raise
    except ImportError as error:
        raise ImportError(f"an .npz file needs numpy; {install('learn')}.", name=error.name) from error
    except Exception as error:  # zipfile and numpy raise nearly anything
        raise DataError(
            f"{path} cannot be read as .npz: {str(error) or type(error).__name__}; save plain arrays of numbers or "
            "strings with numpy.savez."
        ) from error


def read_arrays(
    path: str | os.PathLike[str], choose: Callable[[Sequence[str]], Sequence[str]], largest: int = LARGEST
) -> list[Any]:
    """The arrays that `choose` picks from the names in the file.

    largest: bytes that they may unpack to if that is more than the file has itself.
    """
    with npz_errors(path), open_file(path) as file, zipfile.ZipFile(file) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        names = choose(sorted(members))
        unpacked = sum(members[name].file_size for name in names)
        if unpacked > max(largest, os.fstat(file.fileno()).st_size):
            raise DataError(
                f"{path} unpacks to {unpacked} bytes, the limit is {largest}; if it should, give largest={unpacked}."
            )
        return [_read_array(archive, members[name]) for name in names]


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Any:
    """An array of numbers or text; numpy's own reader makes room for whatever the header says."""
    import numpy
    from numpy.lib import format

    headers = {(1, 0): format.read_array_header_1_0, (2, 0): format.read_array_header_2_0}
    with archive.open(member) as stream:
        shape, fortran, dtype = headers[format.read_magic(stream)](stream)
        data = bytearray(stream.read())
    if dtype.hasobject or len(data) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{member.filename} is {dtype} of shape {shape}, and has {len(data)} bytes")
    return numpy.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
