"""Settings tried on held-out training data: test data are never used to choose one."""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

from fromp.foundation.errors import FrompError
from fromp.lab.engine.jobs import Execution, Job, learn_all, unfinished
from fromp.lab.results import selection, store
from fromp.lab.results.format import results_table
from fromp.lab.results.plan import Plan, parse_setting
from fromp.lab.settings import as_text

HELD_OUT = 0.1  # share of the training data


def parse_values(text: str) -> tuple[str, list[str]]:
    """`KEY=V1,V2` as a setting's name and the values to try."""
    if "=" not in text:
        raise FrompError(f"--grid {text} has no values; write KEY=V1,V2, as in --grid tau=1,10.")
    key, values = parse_setting(text)
    return key, values.split(",")


def candidates(
    benchmark: str, method: str, changes: Mapping[str, Any], grid: Mapping[str, Sequence[Any]]
) -> dict[str, Plan]:
    """A plan for every combination of the values, under a name that says which; always with data held out."""
    changes = {"validation": HELD_OUT, **changes}
    found = {}
    for values in product(*grid.values()):
        plan = Plan.of(benchmark, method, **{**changes, **dict(zip(grid, values, strict=True))})
        found[_name({key: plan.flat()[key] for key in grid})] = plan
    return found


def tune(plans: Mapping[str, Plan], seeds: Sequence[int], out: Path, execution: Execution, console: Console) -> int:
    """Learn every candidate that is not done, and show them, the best on held-out data first; the exit code.

    All that lies in `out`, from earlier grids too, is collected in its selection.json.
    """
    jobs = [Job(plan, seed, out / name) for name, plan in plans.items() for seed in seeds]
    code = learn_all(unfinished(jobs), execution)
    if code >= 128:
        return code
    selection.write(out, out)
    found = {name: store.read(out / name) for name in plans if (out / name / store.RESULTS).exists()}
    means = {name: summary.mean for name in found if (summary := found[name].summary("average_accuracy"))}
    best = sorted(means, key=lambda name: means[name], reverse=True)  # those that have failed are left out
    table = results_table([found[name] for name in best], best)
    console.print(table.terminal("accuracy on held-out training data"))
    return code


def _name(changes: Mapping[str, Any]) -> str:
    return "-".join(f"{key}-{as_text(value)}" for key, value in changes.items()).replace("_", "-") or "preset"
