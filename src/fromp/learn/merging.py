"""Two states that went on from the same one, at two sites, as one: without the data of either."""

from dataclasses import replace

from torch import Tensor

from fromp.foundation.errors import FrompError
from fromp.foundation.state import State, flatten
from fromp.learn.labels import Classes, Label
from fromp.learn.saved import Month, Saved
from fromp.regulariser import FROMP


def merged(ours: Saved, theirs: Saved, start: Saved | None, regs: tuple[FROMP, FROMP, FROMP | None]) -> Saved:
    """The months of both, those of the start once; the weights are the mean of both, and the prior is taken there.

    regs: the regularisers of the three states, each with a model of its own.
    """
    begun = start.months if start else ()
    for site, saved in (("this state", ours), ("the other one", theirs)):
        if [month.digest for month in saved.months[: len(begun)]] != [month.digest for month in begun]:
            names = ", ".join(month.name for month in begun)
            raise FrompError(
                f"{site} did not go on from the start, which has the months {names}; name the right start."
            )
    for what, mine, other in (
        ("columns", ours.encoding.state(), theirs.encoding.state()),
        ("network", ours.network.state(), theirs.network.state()),
        ("outputs", {"": ours.settings["outputs"]}, {"": theirs.settings["outputs"]}),
    ):
        if not _same(mine, other):
            raise FrompError(f"the {what} of the two states differ; merge states that went on from one.")
    label = _label(ours.label, theirs.label)
    reg, other_reg, start_reg = regs
    own, others = reg.model.state_dict(), other_reg.model.state_dict()
    mean = {name: (value + others[name]) / 2 if value.is_floating_point() else value for name, value in own.items()}
    reg.model.load_state_dict(mean)
    gone = {one.name for saved in (ours, theirs) for one in saved.months[: len(begun)] if not one.remembered}
    _forget(reg, ours, gone)
    _forget(other_reg, theirs, gone)
    if start_reg is not None and start is not None:
        _forget(start_reg, start, gone)
    reg.merge(other_reg, start_reg)
    months = _months(ours, theirs, len(begun))
    if sum(month.remembered for month in months) != len(reg.memories):
        raise FrompError("a month of the start has kept other examples at each site; forget it in both before merging.")
    return replace(ours, label=label, months=months, weights=mean, regulariser=reg.state_dict())


def _months(ours: Saved, theirs: Saved, begun: int) -> tuple[Month, ...]:
    """The start's months, then what is new here, then what is new there, under names of their own."""
    common = [
        replace(mine, remembered=mine.remembered and other.remembered)
        for mine, other in zip(ours.months[:begun], theirs.months[:begun], strict=True)
    ]
    new_here, new_there = ours.months[begun:], []
    gap = [None] * len(new_here)
    taken = {month.name for month in ours.months}
    for month in theirs.months[begun:]:
        if any(month.digest == mine.digest for mine in new_here):
            raise FrompError(
                f"both states have learned the file of {month.name!r}; learn it at one site, or before they part."
            )
        name = month.name
        while name in taken:
            name += "'"
        taken.add(name)
        new_there.append(
            replace(
                month,
                name=name,
                scores=[*month.scores[:begun], *gap, *month.scores[begun:]],
                drift=[*month.drift[:begun], *gap, *month.drift[begun:]],
            )
        )
    return (*common, *new_here, *new_there)


def _forget(reg: FROMP, saved: Saved, names: set[str]) -> None:
    """Drop these months from a state's regulariser: what one site has forgotten is forgotten."""
    remembered = [month.name for month in saved.months if month.remembered]
    for place in reversed(range(len(remembered))):
        if remembered[place] in names:
            reg.forget(place)


def _label(mine: Label, other: Label) -> Label:
    """The label with the classes of both, if one of them only has further ones."""
    if isinstance(mine, Classes) and isinstance(other, Classes) and mine.name == other.name:
        shorter, longer = sorted((mine, other), key=lambda label: len(label.names))
        if longer.names[: len(shorter.names)] == shorter.names:
            return longer
        raise FrompError(
            f"the sites have different new classes, {', '.join(mine.names)} and {', '.join(other.names)}; learn new "
            "ones before they part."
        )
    if not _same(mine.state(), other.state()):
        raise FrompError(
            f"the labels of the two states differ: {mine.name} and {other.name}; merge states of one label."
        )
    return mine


def _same(one: State, other: State) -> bool:
    (tensors, tree), (others, other_tree) = flatten(one), flatten(other)
    return tree == other_tree and all(_equal(tensors[name], others[name]) for name in tensors)


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool((one == other).all())
