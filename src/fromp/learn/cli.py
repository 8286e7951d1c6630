"""The commands for one's own data, month by month, and what every command of `fromp` has in common."""

import inspect
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, CycloptsError, Group, Parameter
from cyclopts.types import NonNegativeFloat, NonNegativeInt, PositiveInt

from fromp import __version__
from fromp.foundation.errors import FrompError
from fromp.learn.console import PlainConsole, printable, steps_bar

if TYPE_CHECKING:  # a command imports what it needs: `fromp --help` does not wait for torch
    from fromp.learn.learner import Learner

app = App(
    name="fromp",
    version=f"fromp {__version__}",
    help="""Continual learning by functional regularisation of memorable past.

    Your own data: `fromp learn january.csv --label churn --state churn/`, and a month later
    `fromp learn february.csv --state churn/`. A benchmark of half a minute: `fromp run toy`. Options and examples of a
    command: `fromp COMMAND --help`.""",
    help_format="markdown",
    default_parameter=Parameter(negative="", allow_repeating=True, show_default=lambda value: value or None),
)
app.register_install_completion_command(help="Install completion of commands, options and names for your shell.")


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 2 if an input is wrong, 129, 130 or 143 after an interruption."""
    try:
        command, arguments = parse(sys.argv[1:] if words is None else words)
        return command(*arguments.args, **arguments.kwargs) or 0
    except FrompError as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"{error.filename or 'a file'}: {error.strerror or error}; give another path.")
    except KeyboardInterrupt:
        return _fail("interrupted; what was saved is kept. Run the same command again.", 130)


def parse(words: Sequence[str]) -> tuple[Callable[..., int | None], inspect.BoundArguments]:
    """The function that a command line calls and its arguments; an error if the line is wrong."""
    try:
        command, arguments, _ = app.parse_args(list(words), exit_on_error=False, print_error=False)
    except CycloptsError as error:
        chain = " ".join(("fromp", *(error.command_chain or ())))
        raise FrompError(f"{error} `{chain} --help` lists the options.") from error
    return command, arguments


def _fail(message: str, code: int = 2) -> int:
    print(f"fromp: {printable(message)}", file=sys.stderr)
    return code


MONTHS = Group("Your own data, month by month", sort_key=1)
State = Annotated[Path, Parameter(metavar="DIR", help="Folder that holds everything between two months.")]
Source = Annotated[Path, Parameter(name="FILE", help="CSV, Parquet, .npz, a folder of images, or a saved dataset.")]
Column = Annotated[tuple[str, ...], Parameter(metavar="COLUMN")]
NetworkName = Annotated[str | None, Parameter(metavar="NAME")]
NetworkFile = Annotated[
    Path | None,
    Parameter(name="--network", metavar="FILE.py", help="Your own network, if the state was learned with one."),
]
Encoding = Annotated[str, Parameter(metavar="NAME", help="Encoding of CSV files, such as latin-1.")]


@app.command(group=MONTHS, sort_key=1)
def learn(
    file: Source, /, *, state: State, label: Annotated[str | None, Parameter(metavar="COLUMN")] = None,
    network: NetworkName = None, hidden: Annotated[str | None, Parameter(metavar="64,64")] = None,
    drop: Column = (), category: Column = (), words: Column = (), kind: Literal["classes", "quantity"] | None = None,
    name: Annotated[str | None, Parameter(metavar="MONTH")] = None,
    memory: Annotated[PositiveInt | None, Parameter(metavar="M")] = None,
    room: Annotated[NonNegativeInt | None, Parameter(metavar="N")] = None,
    epochs: Annotated[PositiveInt | None, Parameter(metavar="E")] = None,
    tau: Annotated[NonNegativeFloat | None, Parameter(metavar="T")] = None,
    seed: Annotated[NonNegativeInt | None, Parameter(metavar="S")] = None, encoding: Encoding = "utf-8-sig",
    quiet: bool = False,
) -> int:  # fmt: skip
    """Learn a month of data; the months before are remembered.

    FILE is CSV, Parquet, .npz, a folder with one folder of images per class, or a dataset that Hugging Face's
    `datasets` saved to disk. For example:

        fromp learn january.csv --label churn --state churn/
        fromp learn february.csv --state churn/

    Args:
        label: Column to be predicted; for the first month.
        network: mlp, cnn or linear; or a Python file that has build(input_shape, num_outputs), named at each call.
        hidden: Units of each hidden layer of an mlp, channels of each convolution of a cnn.
        drop: Leave a column out; repeatable.
        category: Take a column as categories; repeatable.
        words: Take a column as free text; repeatable.
        kind: What the label is, if its values do not tell.
        name: Name of the month; the file's name if not given.
        memory: Examples to keep per month; 200, and at most a quarter of the month, if not given.
        room: New classes that may come in later months; 8 if not given.
        epochs: Passes over the month; chosen on held-out rows of the first month if not given.
        tau: Strength of the penalty; chosen on held-out rows of the month and on the memory if not given.
        seed: Seed of the first weights and of the order of the rows.
        quiet: Print no progress.
    """
    from fromp.learn.learner import Learner

    learner = Learner(state, network, encoding=encoding)
    with steps_bar(quiet) as watch:
        learner.learn(
            file, label, name=name, kind=kind, hidden=_sizes(hidden), drop=drop, categories=category, words=words,
            memory_size=memory, room=room, epochs=epochs, tau=tau, seed=seed, watch=watch,
        )  # fmt: skip
    return _print(learner.summary())


@app.command(group=MONTHS, sort_key=2)
def evaluate(
    *files: Source, state: State, network: NetworkFile = None, encoding: Encoding = "utf-8-sig", json: bool = False
) -> int:
    """Show how good the model is now on every month so far, or on given files.

    The score is that on the held-out rows of a month, which are read from its file. If the file is gone or changed,
    the score when the month was learned and the score at the remembered examples are still shown. The drift is how far
    the answers moved at those examples while the last month was learned (root mean square). For example:

        fromp evaluate --state churn/
        fromp evaluate march.csv --state churn/

    Args:
        files: Files with labels; of a month's file its held-out part, of any other all rows.
        json: Print them as JSON.
    """
    found = _learner(state, network, encoding).evaluate(*files)
    return print_json({"metric": found.metric, "unit": found.unit, "rows": found.rows}) if json else _print(str(found))


@app.command(group=MONTHS, sort_key=3)
def predict(
    file: Source, /, *, state: State, to: Annotated[Path, Parameter(metavar="OUT")], network: NetworkFile = None,
    encoding: Encoding = "utf-8-sig",
) -> int:  # fmt: skip
    """Write the model's prediction for each row of a file.

    For example:

        fromp predict march.csv --state churn/ --to march-predicted.csv

    Args:
        to: File to write, .csv or .parquet: the prediction of each row and, of classes, the probability of each.
    """
    found = _learner(state, network, encoding).predict(file)
    found.write(to)
    return _print(f"{to}: {len(found)} predictions")


@app.command(name="inspect", group=MONTHS, sort_key=4)
def inspect_(
    *, state: State, month: Annotated[str | None, Parameter(metavar="NAME")] = None, network: NetworkFile = None,
    json: bool = False,
) -> int:  # fmt: skip
    """Show what is remembered of each month; report.html in the state folder has pictures.

    For example:

        fromp inspect --state churn/
        fromp inspect --state churn/ --month january

    Args:
        month: List the examples that are kept of this month.
        json: Print everything as JSON.
    """
    found = _learner(state, network).inspect()
    if json:
        return print_json({"rows": found.rows})
    return _print(str(found) if month is None else found.examples(month))


@app.command(group=MONTHS, sort_key=5)
def forget(
    *, state: State, month: Annotated[str, Parameter(metavar="NAME")],
    examples: Annotated[str | None, Parameter(metavar="I,J")] = None, network: NetworkFile = None,
) -> int:  # fmt: skip
    """Remove what is remembered of a month, or some of its examples.

    For example:

        fromp forget --state churn/ --month january
        fromp forget --state churn/ --month january --examples 3,17

    Args:
        month: A month of `fromp inspect`.
        examples: The examples to remove, by their index in `fromp inspect --month`.
    """
    learner = _learner(state, network)
    learner.forget(month, None if examples is None else _integers("--examples", examples))
    return _print(str(learner.inspect()))


@app.command(group=MONTHS, sort_key=6)
def merge(
    other: Annotated[Path, Parameter(name="OTHER")], /, *, state: State,
    start: Annotated[Path | None, Parameter(metavar="DIR")] = None, network: NetworkFile = None,
) -> int:  # fmt: skip
    """Take over what another state has learned since both went on from the same one, without its data.

    For example:

        fromp merge from-the-other-site/ --state churn/ --start churn-in-january/

    Args:
        other: State folder of the other site; it stays as it is.
        start: Copy of the state folder as it was when the sites parted; if not given, both had learned nothing.
    """
    learner = _learner(state, network)
    learner.merge(other, start)
    return _print(str(learner.evaluate()))


@app.command(group=MONTHS, sort_key=7)
def upgrade(folder: Annotated[Path, Parameter(name="DIR")], /) -> int:
    """Rewrite a memory folder of an older version in today's format; optional, as older formats are still read.

    For example:

        fromp upgrade memory/

    Args:
        folder: A folder that `reg.save` wrote. It stays as it was until the new files are complete.
    """
    from fromp import formats

    done = formats.upgrade(folder)
    return _print(f"{folder}: {'brought up to date' if done else 'is up to date already'}.")


def _learner(state: Path, network: Path | None, encoding: str = "utf-8-sig") -> "Learner":
    from fromp.learn.learner import Learner

    return Learner(state, network, encoding=encoding)


def _sizes(text: str | None) -> list[int] | None:
    return None if text is None else _integers("--hidden", text)


def _integers(option: str, text: str) -> list[int]:
    """The whole numbers in a list with commas."""
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise FrompError(f"{option} {text} is not a list of whole numbers; write {option} 3,17.") from error


def _print(text: str) -> int:
    PlainConsole().print(text, soft_wrap=True)
    return 0


def print_json(value: Any) -> int:
    """Print a value as JSON."""
    print(json.dumps(value, indent=1))
    return 0
