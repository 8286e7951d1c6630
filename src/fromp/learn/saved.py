"""The state folder: weights, memory, preprocessing and what built the network; written whole or not at all, no code."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import get_origin

from fromp.foundation import storage
from fromp.foundation.errors import CheckpointError, FrompError
from fromp.foundation.state import State, field
from fromp.learn.encoding import Encoding
from fromp.learn.labels import Label, label_from
from fromp.learn.networks import Network

KIND = "fromp-learn"
LOCK = ".learning.lock"
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Month:
    """What is known of a month that was learned: numbers and names, no data."""

    name: str
    source: str  # where its file was
    encoding: str  # how text is written in it
    digest: str  # SHA-256 by which the file is known again
    rows: int
    held_out: int
    date: str  # on which it was learned
    epochs: int
    tau: float
    tried: list[list[float]]  # (epochs, tau, held-out loss)
    replaced: dict[str, dict[str, int]]  # what was done to cells -> column -> how many
    new_classes: list[str]
    scores: list[float | None]  # on the held-out part of each month so far, just after this one was learned
    drift: list[float | None]  # at what is remembered of each month before, just before this one was added
    remembered: bool  # whether some of its examples are still kept

    @classmethod
    def from_state(cls, state: State) -> "Month":
        """The month that `asdict` took apart, each value of its kind."""
        kinds = {one.name: get_origin(one.type) or one.type for one in fields(cls)}
        values = {name: field(state, name, kind) for name, kind in kinds.items()}  # type: ignore[arg-type]
        numbers = [*values["scores"], *values["drift"]]
        if not all(value is None or isinstance(value, float | int) for value in numbers):
            raise CheckpointError("a month's saved scores are not numbers; restore the folder from a copy.")
        if not all(isinstance(columns, dict) for columns in values["replaced"].values()):
            raise CheckpointError("a month's saved counts of cells are not by column; restore the folder from a copy.")
        if not SHA256.fullmatch(values["digest"]):
            raise CheckpointError("a month's saved digest is not a SHA-256; restore the folder from a copy.")
        return cls(**values)


@dataclass(frozen=True)
class Saved:
    """Everything that a state folder holds."""

    encoding: Encoding
    label: Label
    network: Network
    settings: Mapping[str, int]
    months: tuple[Month, ...]
    weights: State
    regulariser: State

    @property
    def last_drift(self) -> list[float | None]:
        """How far the answers moved at what is remembered of each month while the last one was learned."""
        found = [*self.months[-1].drift, None]
        return [value if month.remembered else None for month, value in zip(self.months, found, strict=False)]

    def write(self, folder: Path) -> None:
        """Replace what the folder holds, so that an interruption leaves what was there."""
        storage.write(
            folder,
            KIND,
            {
                "encoding": self.encoding.state(),
                "label": self.label.state(),
                "network": self.network.state(),
                "settings": dict(self.settings),
                "months": [asdict(month) for month in self.months],
                "weights": dict(self.weights),
                "regulariser": self.regulariser,
            },
        )

    @classmethod
    def read(cls, folder: Path) -> "Saved":
        """What `write` wrote; an error unless every part of it is sound."""
        state = storage.read(folder, KIND)
        settings = field(state, "settings", dict)
        for name in SETTINGS:
            if field(settings, name, int) < (name != "seed"):
                raise CheckpointError(f"the saved {name} is {settings[name]}; restore the folder from a copy.")
        months = tuple(Month.from_state(month) for month in field(state, "months", list))
        if not months or len({month.name for month in months}) < len(months):
            raise CheckpointError("the saved months have no names of their own; restore the folder from a copy.")
        return cls(
            Encoding.from_state(field(state, "encoding", dict)),
            label_from(field(state, "label", dict)),
            Network.from_state(field(state, "network", dict)),
            {name: settings[name] for name in SETTINGS},
            months,
            field(state, "weights", dict),
            field(state, "regulariser", dict),
        )


SETTINGS = ("memory_size", "outputs", "epochs", "seed")


def is_begun(folder: Path) -> bool:
    """Whether a month was learned into the folder."""
    return (folder / storage.MANIFEST).exists()


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """No other process changes the state meanwhile; a folder that this made and nothing was written to is removed."""
    from filelock import FileLock, Timeout

    made = not folder.exists()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK, timeout=0, mode=0o600)
    try:
        with lock:
            yield
    except Timeout as error:
        raise FrompError(f"{folder} is in use by another process; wait until it has finished.") from error
    except OSError as error:
        raise FrompError(
            f"{error.filename or folder}: {error.strerror or error}; free space, or give a folder that can be written."
        ) from error
    finally:
        if made and not is_begun(folder):
            (folder / LOCK).unlink(missing_ok=True)
            if not any(folder.iterdir()):
                os.rmdir(folder)
