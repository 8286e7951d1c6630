"""Parquet files and saved datasets that unpack to far more than they hold are refused before they fill the memory."""

import json

import pyarrow
import pytest
from pyarrow import ipc, parquet

from fromp.foundation.errors import DataError
from fromp.reading.arrow import read_parquet, read_saved_dataset
from fromp.reading.columns import Numbers, Text

LARGEST = 10**6  # bytes


def shared(rows=1000, length=10_000):
    """One long text in many rows."""
    return pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * rows, pyarrow.int32()), ["x" * length])


def saved(folder, table):
    folder.mkdir()
    with ipc.new_stream(folder / "data.arrow", table.schema) as out:
        out.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    (folder / "dataset_info.json").write_text("{}")
    return folder


@pytest.mark.parametrize(
    "values",
    [
        shared(),
        pyarrow.array([["x" * 10_000] * 10] * 100),
        pyarrow.array([{"bytes": b"x" * 10_000, "path": None}] * 1000),
        pyarrow.array([[1] * 10_000] * 100),
    ],
    ids=["text", "texts", "files", "numbers"],
)
def test_what_unpacks_to_more_than_the_limit_is_refused(tmp_path, values):
    table = pyarrow.table({"a": values})
    parquet.write_table(table, tmp_path / "a.parquet", compression="zstd")
    assert (tmp_path / "a.parquet").stat().st_size < LARGEST / 10
    with pytest.raises(DataError, match="the limit is 1000000"):
        read_parquet(tmp_path / "a.parquet", LARGEST)


def test_a_saved_dataset_whose_rows_share_a_long_text_is_refused(tmp_path):
    folder = saved(tmp_path / "set", pyarrow.table({"a": shared()}))
    with pytest.raises(DataError, match=r"unpacks to 10[0-9]{6} bytes, the limit is 1000000"):
        read_saved_dataset(folder, LARGEST)
    assert len(read_saved_dataset(folder, 10**8).columns["a"]) == 1000


def test_rows_in_several_parts_come_together(tmp_path, monkeypatch):
    monkeypatch.setattr("fromp.reading.arrow.ROWS", 3)
    texts = ["a", "b", None, "c", "a", "d", "e"]
    numbers = [1.0, None, 3.0, 4.0, 5.0, 6.0, 7.0]
    table = pyarrow.table({"text": texts, "number": numbers, "kind": pyarrow.array(texts).dictionary_encode()})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=4)
    found = read_parquet(tmp_path / "a.parquet").columns
    assert isinstance(found["text"], Text)
    assert isinstance(found["number"], Numbers)
    assert found["text"].cells == found["kind"].cells == [text or "" for text in texts]
    assert found["number"].values[3:].tolist() == [4.0, 5.0, 6.0, 7.0]
