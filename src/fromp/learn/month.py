"""One month: what the first one fixes, and what learning a further one changes in the state."""

import os
import reprlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from torch import Tensor

from fromp.foundation.checked import count, count_or_none, number
from fromp.foundation.errors import DataError, FrompError
from fromp.learn import method
from fromp.learn.encoders import Counts
from fromp.learn.encoding import Encoding
from fromp.learn.files import digest, read_table
from fromp.learn.fitting import Watch, choose, fit, predicted
from fromp.learn.labels import Classes, Label, Quantity, label_of
from fromp.learn.networks import OWN, Network, load_weights
from fromp.learn.saved import Month, Saved
from fromp.reading.columns import Column, Table
from fromp.regulariser import FROMP

FEWEST_ROWS = 20
MEMORY_SIZE = 200
SHARE_KEPT = 4  # at most one example in four is kept of a small month
ROOM = 8  # classes that may come later, for which the network has outputs from the start
LABELS: dict[str, type[Classes] | type[Quantity]] = {"classes": Classes, "quantity": Quantity}


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What the first month fixes. Whatever is None or empty is chosen for it, and stays as it was in a later one."""

    label: str | None = None
    kind: str | None = None
    network: str | None = None
    hidden: Sequence[int] | None = None
    drop: Collection[str] = ()
    categories: Collection[str] = ()
    words: Collection[str] = ()
    memory_size: int | None = None
    room: int | None = None
    seed: int | None = None

    @property
    def network_file(self) -> Path | None:
        """The user's own file, if that builds the network."""
        return Path(self.network) if self.network is not None and self.network.endswith(".py") else None


@dataclass(frozen=True)
class Examples:
    """A month's rows as inputs and targets, and which of them are held out for testing."""

    x: Tensor
    y: Tensor
    test: Tensor
    replaced: Counts


def begun(table: Table, choices: Choices) -> Saved:
    """The state before the first month: its columns, label and network, and no weights yet."""
    _check_rows(table)
    name = choices.label or table.label
    if name is None:
        raise DataError(f"{table.origin} has the columns {names_of(table)}; name one of them as the label.")
    if choices.kind not in (None, *LABELS):
        raise FrompError(f"unknown kind of label {choices.kind!r}; use {' or '.join(LABELS)}.")
    column = label_column(table, name)
    label = label_of(table.origin, name, column, LABELS[choices.kind] if choices.kind else None)
    training = ~label.held_out(label.targets(table.origin, column))
    rows = table.take(training.nonzero().flatten().tolist())
    encoding = Encoding.first(rows, name, choices.drop, choices.categories, choices.words)
    network = Network.named(choices.network, choices.hidden, encoding.shape)
    room = ROOM if choices.room is None else choices.room
    if room < 0:
        raise FrompError(f"room={room} must be zero or more classes.")
    outputs = label.num_outputs + (room if isinstance(label, Classes) else 0)
    memory_size = count("memory_size", MEMORY_SIZE if choices.memory_size is None else choices.memory_size)
    settings = {"memory_size": memory_size, "outputs": outputs, "epochs": 1, "seed": choices.seed or 0}
    return Saved(encoding, label, network, settings, (), {}, {})


def continued(saved: Saved, table: Table, choices: Choices) -> Saved:
    """The state with what a later month changes in columns and label; an error if a choice contradicts the first."""
    _check_rows(table)
    label, network = saved.label, saved.network
    given = {
        "label": (choices.label, label.name),
        "kind": (choices.kind, "classes" if isinstance(label, Classes) else "quantity"),
        "network": (None if choices.network_file else choices.network, network.name),
        "hidden": (choices.hidden and tuple(choices.hidden), network.hidden),
        "seed": (choices.seed, saved.settings["seed"]),
    }
    for what, (asked, fixed) in given.items():
        if asked not in (None, fixed):
            raise FrompError(f"{what}={asked!r} and the state has {fixed!r}; leave it out, or start another state.")
    for what, names in {"categories": choices.categories, "words": choices.words, "room": choices.room}.items():
        if names:
            raise FrompError(f"{what}={names!r} can be given with the first month only; leave it out.")
    updated = label.updated(table.origin, label_column(table, label.name))
    if updated.num_outputs > saved.settings["outputs"]:
        raise DataError(
            f"{table.origin} brings the classes to {updated.num_outputs}, the network has {saved.settings['outputs']} "
            "outputs; start another state with more room."
        )
    settings = dict(saved.settings)
    if choices.memory_size is not None:
        settings["memory_size"] = count("memory_size", choices.memory_size)
    return replace(saved, encoding=saved.encoding.without(choices.drop), label=updated, settings=settings)


def opened(saved: Saved, network_file: Path | None) -> FROMP:
    """The regulariser with its model, as they were when the state was saved."""
    if network_file is None and saved.network.name == OWN:
        raise FrompError("the state was learned with a network of one's own; name its Python file: network=FILE.py.")
    settings = saved.settings
    model = saved.network.build(saved.encoding.shape, settings["outputs"], settings["seed"], network_file)
    if saved.months:
        load_weights(model, saved.weights)
    reg = method.regulariser(model.eval(), saved.label.likelihood, settings["memory_size"])
    if saved.months:
        reg.load_state_dict(saved.regulariser)
    return reg


def examples(saved: Saved, table: Table) -> Examples:
    """The rows of a table as the network takes them."""
    y = saved.label.targets(table.origin, label_column(table, saved.label.name))
    x, replaced = saved.encoding.encode(table, saved.label.name)
    return Examples(x, y, saved.label.held_out(y), replaced)


def learned(
    saved: Saved, month: Examples, reg: FROMP, record: Month, epochs: int | None, tau: float | None, watch: Watch
) -> Saved:
    """The state after a month: `record` says what is known of it beforehand."""
    epochs, tau = count_or_none("epochs", epochs), None if tau is None else number("tau", tau)
    x, y = month.x[~month.test], month.y[~month.test]
    seed = saved.settings["seed"] + len(saved.months)
    reg.memory_size = max(saved.label.num_outputs, min(saved.settings["memory_size"], len(x) // SHARE_KEPT))
    if saved.months and epochs is None:
        epochs = saved.settings["epochs"]
    chosen = choose(reg, x, y, saved.label.held_out(y), epochs, tau, seed, watch)
    reg.tau = chosen.tau
    fit(reg, x, y, chosen.epochs, seed, lambda share: watch("learning", share))
    drift = reg.drift()
    watch("remembering", 0.0)
    reg.end_task((x, y))
    kept = iter(drift)
    record = replace(
        record,
        epochs=chosen.epochs,
        tau=chosen.tau,
        tried=[list(one) for one in chosen.tried],
        replaced=_by_what(month.replaced),
        scores=[_score_at_source(saved, one, reg) for one in saved.months] + [score(saved.label, reg, month)],
        drift=[next(kept) if one.remembered else None for one in saved.months],
    )
    return replace(
        saved,
        settings={**saved.settings, "epochs": chosen.epochs},
        months=(*saved.months, record),
        weights=dict(reg.model.state_dict()),
        regulariser=reg.state_dict(),
    )


def unlearned(saved: Saved, table: Table, name: str, known: str, encoding: str, month: Examples) -> Month:
    """What is known of a month before it is learned; an error if its name or file is that of another."""
    for other in saved.months:
        if other.digest == known:
            raise DataError(f"{table.origin} was learned before, as {other.name!r}; name the next month's file.")
        if other.name == name:
            raise DataError(f"there is a month {name!r} already, from {other.source}; give this one another name.")
    classes = saved.label.names if isinstance(saved.label, Classes) else ()
    before = {label for other in saved.months for label in other.new_classes}
    return Month(
        name=name, source=os.path.abspath(table.origin), encoding=encoding, digest=known,
        rows=len(table), held_out=int(month.test.sum()),
        date=date.today().isoformat(), epochs=0, tau=0.0, tried=[], replaced={},
        new_classes=[label for label in classes if label not in before], scores=[], drift=[], remembered=True,
    )  # fmt: skip


def score(label: Label, reg: FROMP, month: Examples) -> float:
    """How good the model is on the held-out part of a month."""
    return label.score(predicted(reg.model, month.x[month.test])[:, : label.num_outputs], month.y[month.test])


def at_source(saved: Saved, month: Month) -> Examples | str:
    """The examples of a month that was learned, if its file is still there unchanged; else what is wrong."""
    if not os.path.exists(month.source):
        return "file gone"
    if digest(month.source) != month.digest:
        return "file changed"
    return examples(saved, read_table(month.source, month.encoding))


def label_column(table: Table, name: str) -> Column:
    """The label column of a table."""
    if name not in table.columns:
        raise DataError(f"{table.origin} has no column {name!r}, the label; it has {names_of(table)}.")
    return table.columns[name]


def names_of(table: Table) -> str:
    """The columns of a table, or as many as fit into an error."""
    return reprlib.repr([*table.columns])


def _by_what(counts: Counts) -> dict[str, dict[str, int]]:
    """What was done to cells -> column -> how many."""
    found: dict[str, dict[str, int]] = {}
    for (column, what), number_of_cells in counts.items():
        found.setdefault(what, {})[column] = number_of_cells
    return found


def _check_rows(table: Table) -> None:
    if len(table) < FEWEST_ROWS:
        raise DataError(
            f"{table.origin} has {len(table)} rows; a month needs at least {FEWEST_ROWS}: join it with the next one."
        )


def _score_at_source(saved: Saved, month: Month, reg: FROMP) -> float | None:
    found = at_source(saved, month)
    return None if isinstance(found, str) else score(saved.label, reg, found)
