"""The rows of a CSV file, with the number of the line where each ends."""

import csv
import io
import os
import reprlib
from collections.abc import Callable, Iterator
from typing import TextIO

from fromp.foundation.errors import DataError
from fromp.foundation.storage import open_file

Path = str | os.PathLike[str]
Row = tuple[int, list[str]]


def comma(first_line: str) -> str:
    """What separates cells in a file that has commas, whatever its first line."""
    return ","


def read_rows(path: Path, encoding: str, separator: Callable[[str], str] = comma) -> Iterator[Row]:
    """The header, then every row that is not empty; an error where a row has not as many cells as the header.

    encoding: UTF-8 with or without a mark at its beginning is utf-8-sig.
    separator: what separates the cells, from the file's first line.
    """
    line = 0
    try:
        with open_file(path) as raw, io.TextIOWrapper(raw, encoding, newline="") as file:
            rows = csv.reader(file, delimiter=separator(_first_line(file)))
            header = next(rows, [])
            yield rows.line_num, header
            for row in rows:
                line = rows.line_num
                if not row:
                    continue
                if len(row) != len(header):
                    raise DataError(f"{path}, line {line}: {len(row)} cells, but the header has {len(header)}.")
                yield line, row
    except UnicodeError as error:
        raise DataError(
            f"{path}, after line {line}: {error}; save it as UTF-8, or name its encoding, as in encoding='latin-1'."
        ) from error
    except csv.Error as error:
        raise DataError(f"{path}, after line {line}: {error}; is a quotation mark not closed?") from error
    except (OSError, LookupError) as error:
        raise DataError(f"{path} cannot be read: {error}; name a CSV file and its encoding.") from error


def column_of(path: Path, name: str, header: list[str]) -> int:
    """The place of a column in the header; an error unless it is there once."""
    if header.count(name) != 1:
        raise DataError(f"{path} has {header.count(name)} columns {name!r}; its columns are {reprlib.repr(header)}.")
    return header.index(name)


def _first_line(file: TextIO) -> str:
    """The beginning of the file up to its first line break, without moving on."""
    text = file.readline(csv.field_size_limit())
    file.seek(0)
    return text.rstrip("\r\n")
