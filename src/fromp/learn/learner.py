"""A model that learns one month of data after another, and the folder in which it waits for the next."""

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from fromp.foundation.errors import FrompError
from fromp.learn import report
from fromp.learn.evaluation import Evaluation, evaluated
from fromp.learn.files import digest, read_table
from fromp.learn.fitting import Watch
from fromp.learn.inspection import Inspection, inspected
from fromp.learn.merging import merged
from fromp.learn.month import Choices, begun, continued, examples, learned, opened, unlearned
from fromp.learn.prediction import Predictions, predictions
from fromp.learn.saved import Month, Saved, alone, is_begun
from fromp.learn.summary import last_month

PathLike = str | os.PathLike[str]


def silent(what: str, share: float) -> None:
    """Nobody watches."""


class Learner:
    """Learns files one after another while it forgets little of the earlier ones, whose data it does not keep.

        learner = Learner("churn/")
        learner.learn("january.csv", label="churn")
        learner.learn("february.csv")  # a month later, in another process
        print(learner.evaluate())
        learner.predict("march.csv").write("march-predicted.csv")

    state: the folder that holds everything between two months.
    network: mlp, cnn, linear, or a Python file of one's own with `build(input_shape, num_outputs)`. Such a file is
        named each time and executed; nothing of it is kept in the state.
    encoding: of CSV files; UTF-8 unless another one is named.
    """

    def __init__(self, state: PathLike, network: PathLike | None = None, *, encoding: str = "utf-8-sig") -> None:
        self.folder, self.network, self.encoding = Path(state), network and os.fspath(network), encoding

    def learn(
        self, file: PathLike, label: str | None = None, *, name: str | None = None, kind: str | None = None,
        hidden: Sequence[int] | None = None, drop: Collection[str] = (), categories: Collection[str] = (),
        words: Collection[str] = (), memory_size: int | None = None, room: int | None = None, epochs: int | None = None,
        tau: float | None = None, seed: int | None = None, watch: Watch = silent,
    ) -> Month:  # fmt: skip
        """Learn a month and write the state; if anything fails, the state stays that of the month before.

        The first month fixes the label, the columns with their means and categories, and the network. A fifth of the
        rows is held out for testing. How long to train and, from the second month on, tau are chosen on a fifth of the
        others, unless they are given.

        name: of the month; that of the file if not given. kind: of the label, 'classes' or 'quantity'; by its values
        if not given. drop, categories, words: columns to leave out, to take as categories, to take as free text.
        memory_size: examples to keep per month. room: classes that may come later. watch(what, share) is called while
        it works.
        """
        choices = Choices(
            label=label, kind=kind, network=self.network or None, hidden=hidden, drop=drop, categories=categories,
            words=words, memory_size=memory_size, room=room, seed=seed,
        )  # fmt: skip
        with alone(self.folder):
            table, known = read_table(file, self.encoding), digest(file)
            saved = continued(self._saved(), table, choices) if is_begun(self.folder) else begun(table, choices)
            month = examples(saved, table)
            record = unlearned(saved, table, name or Path(file).stem, known, self.encoding, month)
            reg = opened(saved, choices.network_file)
            saved = learned(saved, month, reg, record, epochs, tau, watch)
            saved.write(self.folder)
            report.write(self.folder, saved, reg)
        return saved.months[-1]

    def summary(self) -> str:
        """What was learned last, in a few lines."""
        return last_month(self.folder, self._saved())

    @property
    def months(self) -> tuple[Month, ...]:
        """What is known of each month that was learned."""
        return self._saved().months if is_begun(self.folder) else ()

    def evaluate(self, *files: PathLike) -> Evaluation:
        """How good the model is now on the held-out part of each month whose file is still there, or on these files."""
        saved = self._saved()
        return evaluated(saved, opened(saved, self._network_file), [os.fspath(file) for file in files], self.encoding)

    def predict(self, file: PathLike) -> Predictions:
        """What the model says of each row; the label column may be missing."""
        saved = self._saved()
        return predictions(saved, opened(saved, self._network_file), read_table(file, self.encoding))

    def inspect(self) -> Inspection:
        """What is remembered of each month."""
        saved = self._saved()
        return inspected(saved, opened(saved, self._network_file))

    def forget(self, month: str, examples: Sequence[int] | None = None) -> None:
        """Remove what is remembered of a month, or its examples with these indices, from the state and its report."""
        with alone(self.folder):
            saved = self._saved()
            names = [one.name for one in saved.months if one.remembered]
            if month not in names:
                raise FrompError(f"nothing is remembered of a month {month!r}; there are {', '.join(names) or 'none'}.")
            reg = opened(saved, self._network_file)
            reg.forget(names.index(month), examples)
            if len(reg.memories) < len(names):
                names.remove(month)
            months = tuple(replace(one, remembered=one.name in names) for one in saved.months)
            saved = replace(saved, months=months, regulariser=reg.state_dict())
            saved.write(self.folder)
            report.write(self.folder, saved, reg)

    def merge(self, other: PathLike, start: PathLike | None = None) -> None:
        """Take over what another state has learned since both went on from the state in `start`, without its data.

        start: a copy of the folder as it was when they parted; None if they had learned nothing before. The weights
        become the mean of both. The other folder stays as it is.
        """
        with alone(self.folder):
            ours, theirs, before = self._saved(), Saved.read(Path(other)), Saved.read(Path(start)) if start else None
            reg, other_reg = opened(ours, self._network_file), opened(theirs, self._network_file)
            start_reg = opened(before, self._network_file) if before else None
            saved = merged(ours, theirs, before, (reg, other_reg, start_reg))
            saved.write(self.folder)
            report.write(self.folder, saved, reg)

    @property
    def _network_file(self) -> Path | None:
        return Choices(network=self.network or None).network_file

    def _saved(self) -> Saved:
        if not is_begun(self.folder):
            raise FrompError(f"{self.folder} holds no state; learn a first month into it, or name the right folder.")
        return Saved.read(self.folder)
