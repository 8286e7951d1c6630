"""What the model says of rows that it has not seen, as a table that can be written."""

import csv
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fromp.foundation import storage
from fromp.foundation.errors import FrompError
from fromp.learn.files import PARQUET
from fromp.learn.fitting import predicted
from fromp.learn.labels import Classes
from fromp.learn.saved import Saved
from fromp.reading.columns import Table
from fromp.regulariser import FROMP


@dataclass(frozen=True)
class Predictions:
    """Columns of one length: the row's number from 1, the prediction, and of classes the probability of each."""

    columns: Mapping[str, Sequence[str | int | float]]

    def __len__(self) -> int:
        return len(self.columns["row"])

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write them to a .csv or .parquet file, whole or not at all."""
        file = Path(path)
        if file.suffix.lower() in PARQUET:
            import pyarrow
            from pyarrow import parquet

            stream = io.BytesIO()
            parquet.write_table(pyarrow.table({name: [*column] for name, column in self.columns.items()}), stream)
            data = stream.getvalue()
        elif file.suffix.lower() == ".csv":
            text = io.StringIO()
            lines = csv.writer(text, lineterminator="\n")
            lines.writerows([[*self.columns], *zip(*self.columns.values(), strict=True)])
            data = text.getvalue().encode()
        else:
            raise FrompError(f"{file} ends in '{file.suffix}'; write predictions to .csv or .parquet.")
        storage.replace(file, data)


def predictions(saved: Saved, reg: FROMP, table: Table) -> Predictions:
    """The prediction for each row, in the label's own words or units."""
    x, _ = saved.encoding.encode(table, saved.label.name)
    f = predicted(reg.model, x)[:, : saved.label.num_outputs]
    columns: dict[str, Sequence[str | int | float]] = {"row": range(1, len(x) + 1)}
    if not isinstance(saved.label, Classes):
        return Predictions(columns | {saved.label.name: saved.label.written(f)})
    p = f.softmax(1)
    columns[saved.label.name] = saved.label.written(p.argmax(1))
    each = {f"p({name})": [round(value, 6) for value in p[:, k].tolist()] for k, name in enumerate(saved.label.names)}
    return Predictions(columns | each)
