"""What docs/library/guarantees.md promises: each beside the test that keeps it, and the figure of the latest campaign."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

# ruff: noqa: E501  (a promise stands in one line)


class Promise(NamedTuple):
    """A sentence, the test that keeps it (a file below tests/, and a test in it), and where its figure is kept."""

    sentence: str
    test: str
    results: str = ""  # below results/
    figure: Callable[[dict[str, Any]], str] = lambda found: ""


READING = 1800  # seconds for each reader
CHANGES = 100_000  # folders


def _left(found: dict[str, Any]) -> str:
    repaired = len(found.get("repaired", []))
    return f"{len(found['findings'])} findings left{f', {repaired} repaired' if repaired else ''}"


def _folders(found: dict[str, Any]) -> str:
    loaded = sum(counts.get("loaded", 0) for counts in found["victims"].values())
    kinds = [counts for counts in found["victims"].values() if counts]
    aim = "" if found["changes"] >= CHANGES else f" (of {CHANGES:,} aimed at)"
    return f"{found['changes']:,} changed folders{aim} of {len(kinds)} kinds: {loaded:,} loaded and sound, the others refused; at most {found['largest_growth_mib']} MiB more memory; {_left(found)}"


def _readers(found: dict[str, Any]) -> str:
    each = found["readers"].values()
    ways = {way: sum(counts.get(way, 0) for counts in each) for way in ("hypothesis", "atheris")}
    least = min(counts["seconds"] for counts in each)
    return (
        f"{len(each)} readers, {least} seconds or more each, the target being {READING}: {ways['hypothesis']:,} files by "
        f"Hypothesis, {ways['atheris']:,} by atheris; {_left(found)}"
    )


def _writes(found: dict[str, Any]) -> str:
    parts = []
    for name, counts in found["faults"].items():
        faults = sum(count for kind, count in counts.items() if kind != "calls")
        parts.append(f"{name} {faults} faults at {counts['calls']} calls")
    return f"{'; '.join(parts)}; {_left(found)}"


def _lives(found: dict[str, Any]) -> str:
    return (
        f"{found['tasks']:,} tasks: {found['tensors_per_task']:g} tensors and "
        f"{found['resident_bytes_per_task'] / 1024:.0f} KiB of the process per task; {_left(found)}"
    )


def _poison(found: dict[str, Any]) -> str:
    counts = found["operations"].values()
    return (
        f"{sum(sum(each.values()) for each in counts):,} operations spoiled, "
        f"{sum(each.get('refused', 0) for each in counts):,} refused, in {found['passes']} of {found['of_passes']} passes "
        f"that come to all of them; {_left(found)}"
    )


def _beside(found: dict[str, Any]) -> str:
    return (
        f"{found['writers']} writers and {found['readers']} readers: {found['saves']:,} saves and {found['loads']:,} loads, "
        f"each whole; {_left(found)}"
    )


def _budgets(found: dict[str, Any]) -> str:
    shares = [row["used_mib"] / row["budget_mib"] for row in found["rows"]]
    most, kept = (max(row[what] - row["budget_mib"] for row in found["rows"]) for what in ("used_mib", "resident_mib"))
    return (
        f"{len(shares)} cases at the least budget that is accepted: {100 * min(shares):.0f} to {100 * max(shares):.0f} % of "
        f"it held at once, at most {max(most, 0):.1f} MiB more; with what glibc keeps of freed memory, {max(kept, 0):.0f} "
        f"MiB more; {_left(found)}"
    )


def _signals(found: dict[str, Any]) -> str:
    ends = [(what, sum(codes.values())) for each in found["commands"].values() for what, codes in each.items()]
    signals = sum(count for what, count in ends if what.startswith("SIG"))
    return (
        f"{signals} signals and {sum(count for _, count in ends) - signals} full disks, folders that cannot be made or are "
        f"removed, and pairs of writers, at {sum(map(bool, found['commands'].values()))} commands; {_left(found)}"
    )


def _folders_of_formats(found: dict[str, Any]) -> str:
    formats = " and ".join(map(str, found["formats"]))
    return f"{found['loaded']} of {found['folders']} folders of formats {formats} load; {_left(found)}"


def _brings(found: dict[str, Any]) -> str:
    lab, learn = len(found["brings"]["lab"]), len(found["brings"]["learn"])
    return f"the library {len(found['brings']['the library'])} packages, `lab` {lab} more, `learn` {learn}"


def _kills(found: dict[str, Any]) -> str:
    runs, equal, unreadable = (
        sum(each[key] for each in found["works"].values()) for key in ("runs", "equal", "unreadable")
    )
    return (
        f"{found['kills']} kills of {len(found['works'])} kinds of work, {found['works'].get('two ranks', {}).get('kills', 0)} "
        f"of them of two ranks: {equal} of {runs} ends equal, {unreadable} folders unreadable"
    )


PROMISES = [
    Promise("A run that is killed goes on, and ends with the same bits", "lab/engine/test_jobs.py::test_killed_again_and_again", "reliability/kills.json", _kills),
    Promise("At any write, a save that dies or fails leaves what was saved before or what was being saved, and doing it again works", "library/foundation/test_faults.py::test_a_save_survives_a_fault_at_any_call", "reliability/writes.json", _writes),
    Promise("A changed folder is refused in our words or loads into sound numbers; it never ends the interpreter", "library/test_trust.py::test_a_damaged_state_is_refused_or_harmless", "reliability/mutations.json", _folders),
    Promise("Every reader takes a file or refuses it in our words, within seconds", "lab/data/test_readers.py::test_changed_bytes_are_read_or_refused", "reliability/readers.json", _readers),
    Promise("NaN or infinity in any operation never reaches what is kept; the error names where it came out", "library/test_trust.py::test_what_is_not_finite_is_never_kept", "reliability/poison.json", _poison),
    Promise("Nothing grows with the number of tasks but the memory itself", "library/test_long_life.py::test_tensors_of_forgotten_tasks_are_gone", "reliability/lives.json", _lives),
    Promise("The end of a task stays within `memory_budget`, or says before any work what would fit", "library/test_room.py::test_what_is_used_is_within_the_budget", "reliability/budgets.json", _budgets),
    Promise("Files of others in a folder stay", "library/foundation/test_storage.py::test_other_peoples_files_stay"),
    Promise("Files that hold examples are readable by the owner alone", "library/foundation/test_storage.py::test_only_the_owner_may_read"),
    Promise("Two writers, or a writer and a reader, leave a folder that can be read", "library/foundation/test_storage.py::test_several_processes_writing_leave_a_folder_that_can_be_read", "reliability/beside.json", _beside),
    Promise("A signal saves the run, and the exit code says which it was; what cannot be written is said, with exit code 2", "lab/engine/test_jobs.py::test_a_signal_saves_and_says_so", "reliability/signals.json", _signals),
    Promise("Folders of every format so far load", "library/test_formats.py::test_it_loads", "reliability/counts.json", _folders_of_formats),
    Promise("An install of the library brings torch and safetensors; versions with known incidents are excluded", "docs/test_install.py::test_versions_with_known_incidents_are_excluded", "reliability/counts.json", _brings),
]  # fmt: skip


def table(results: Path) -> list[list[str]]:
    """One row per promise: the sentence, the test, the figure."""
    rows = []
    for promise in PROMISES:
        path = results / promise.results
        figure = (
            promise.figure(json.loads(path.read_text(encoding="utf-8"))) if promise.results and path.exists() else ""
        )
        file, _, name = promise.test.partition("::")
        rows.append([promise.sentence, f"`tests/{file}`{f', `{name}`' if name else ''}", figure])
    return rows
