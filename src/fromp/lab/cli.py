"""The command line."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fromp import __version__
from fromp.foundation.errors import FrompError, install


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 2 for a wrong input, 130 or 143 after an interruption."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        return options.command(options)
    except FrompError as error:
        print(f"fromp: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"fromp: {error.filename or 'a file'}: {error.strerror or error}; choose another place.", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"fromp: {error.name} is not installed; {install('experiments')}.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("fromp: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fromp", description="Continual learning by functional regularisation of memorable past."
    )
    parser.add_argument("--version", action="version", version=f"fromp {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="learn a benchmark with one method", description="Learn a benchmark.")
    run.add_argument("benchmark", metavar="BENCHMARK", help="one of those that `fromp list` shows")
    run.add_argument("--method", default="fromp", metavar="NAME", help="default: fromp")
    run.add_argument(
        "--task-free", action="store_true", help="find out where tasks begin instead of being told (docs/task-free.md)"
    )
    _add_run_options(run, "runs/BENCHMARK-METHOD, with -task-free")
    run.set_defaults(command=_run)

    compare = commands.add_parser(
        "compare", help="learn a benchmark with several methods", description="Compare methods."
    )
    compare.add_argument("benchmark", metavar="BENCHMARK")
    compare.add_argument("--methods", required=True, metavar="A,B,C", help="names, separated by commas")
    _add_run_options(compare, "runs/BENCHMARK-comparison")
    compare.set_defaults(command=_compare)

    tune = commands.add_parser(
        "tune", help="try settings on held-out training data", description="Try settings on held-out training data."
    )
    tune.add_argument("benchmark", metavar="BENCHMARK")
    tune.add_argument("--method", default="fromp", metavar="NAME", help="default: fromp")
    tune.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="KEY=V1,V2",
        help="values of a setting; repeated, every combination is tried",
    )
    _add_run_options(tune, "runs/BENCHMARK-METHOD-tuning")
    tune.set_defaults(command=_tune)

    reproduce = commands.add_parser(
        "reproduce",
        help="list the paper's tables and figures, or run and render one",
        description="List the paper's tables and figures, or learn what is missing of one and render it.",
    )
    reproduce.add_argument("name", nargs="?", metavar="TABLE-OR-FIGURE", help="one of those listed, or `all`")
    reproduce.add_argument(
        "--quick", action="store_true", help="a small version in minutes; without a name, of everything"
    )
    reproduce.add_argument("--as-is", action="store_true", help="learn nothing, render what there is")
    reproduce.add_argument("--list", action="store_true", help="only list; with --quick, the small version")
    reproduce.add_argument("--out", metavar="DIR", type=Path, help="default: results, or runs/quick with --quick")
    reproduce.add_argument(
        "--jobs", type=int, default=_cores(), metavar="J",
        help="seeds learned at once, each in a process; default: one a core, here %(default)s",
    )  # fmt: skip
    reproduce.add_argument("--quiet", action="store_true", help="say nothing while it learns")
    reproduce.set_defaults(command=_reproduce)

    report = commands.add_parser(
        "report", help="write report.html for a folder of results", description="Write a report."
    )
    report.add_argument("folder", metavar="DIR", type=Path)
    report.set_defaults(command=_report)

    bench = commands.add_parser("bench", help="measure the cost of a step", description="Measure costs as ratios.")
    bench.add_argument("--out", metavar="DIR", type=Path, default=Path("runs/bench"), help="default: runs/bench")
    bench.add_argument("--quick", action="store_true", help="fewer repetitions and cases")
    bench.set_defaults(command=_bench)

    detect = commands.add_parser(
        "detect", help="try detectors of new tasks on streams", description="Try detectors of new tasks."
    )
    detect.add_argument(
        "--streams", metavar="A,B,C", help="of permuted, split, rotated, recurring, stationary; default: all of them"
    )
    detect.add_argument(
        "--detectors", metavar="A,B,C", help="of calibrated, divergence, welch, adwin, kswin; default: all of them"
    )
    detect.add_argument("--seeds", type=int, default=1, metavar="N", help="seeds 0 to N-1; default: 1")
    detect.add_argument(
        "--out", metavar="DIR", type=Path, default=Path("runs/detection"), help="default: runs/detection"
    )
    detect.add_argument("--quick", action="store_true", help="a fifth of each task")
    detect.set_defaults(command=_detect)

    listing = commands.add_parser("list", help="benchmarks and methods there are", description="List what there is.")
    listing.set_defaults(command=_list)

    methods = commands.add_parser(
        "methods", help="where each method comes from, what it keeps and costs", description="Show the methods."
    )
    methods.set_defaults(command=_methods)

    data = commands.add_parser("data", help="show or fetch datasets", description="Show or fetch datasets.")
    data.add_argument("action", nargs="?", choices=["fetch"], help="fetch: get a dataset now")
    data.add_argument("name", nargs="?", metavar="NAME")
    data.add_argument("--folder", metavar="DIR", type=Path, help="look here first (or set FROMP_DATA)")
    data.set_defaults(command=_data)
    return parser


def _add_run_options(parser: argparse.ArgumentParser, out: str) -> None:
    seeds = parser.add_mutually_exclusive_group()
    seeds.add_argument("--seeds", type=int, metavar="N", help="seeds 0 to N-1")
    seeds.add_argument("--seed", type=int, metavar="S", help="one seed; default: 0")
    parser.add_argument("--memory", type=int, metavar="M", help="points kept of each task; tau grows as they get fewer")
    parser.add_argument("--tasks", type=int, metavar="T", help="learn only the first T tasks")
    parser.add_argument("--epochs", type=int, metavar="E", help="epochs a task")
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"default: {out}")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change any setting (docs/commands.md); repeatable",
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="J", help="seeds learned at once, each in a process")
    parser.add_argument(
        "--first-task", type=Path, metavar="DIR", help="share the first task with runs that name the same folder"
    )
    parser.add_argument(
        "--tensorboard", action="store_true", help="write scalars for TensorBoard into the run's folder (an extra)"
    )
    parser.add_argument("--ray", action="store_true", help="spread the seeds over a Ray cluster (an extra)")
    parser.add_argument("--quiet", action="store_true", help="say nothing while it runs")
    parser.add_argument(
        "--checkpoint-seconds", type=float, default=60.0, metavar="S", help="time between checkpoints; default: 60"
    )


def _run(options: argparse.Namespace) -> int:
    from fromp.lab.engine.watch import console

    plan = _plan(options, options.method)
    suffix = "-task-free" if options.task_free else ""
    out = options.out or Path("runs") / f"{options.benchmark}-{options.method}{suffix}"
    code = _learn(plan, out, options)
    if code == 0:
        _finish(out, _seeds(options)[0], console())
    return code


def _compare(options: argparse.Namespace) -> int:
    from fromp.lab import report
    from fromp.lab.engine.watch import console
    from fromp.lab.results import store
    from fromp.lab.results.format import results_table

    methods = list(dict.fromkeys(_names(options.methods)))
    if not methods:
        raise FrompError(f"--methods {options.methods} names no method; write --methods fromp,finetune.")
    plans = {method: _plan(options, method) for method in methods}
    out = options.out or Path("runs") / f"{options.benchmark}-comparison"
    options.first_task = options.first_task or out / "first-task"
    for method in methods:
        if code := _learn(plans[method], out / method, options):
            return code
    if "separate" in methods:
        for method in methods:
            store.add_forward_transfer(out / method, out / "separate")
    table = results_table([store.read(out / method) for method in methods])
    console().print(table.terminal(options.benchmark))
    console().print(f"report: {report.write(out)}", highlight=False, soft_wrap=True)
    return 0


def _tune(options: argparse.Namespace) -> int:
    from fromp.lab.engine import tune
    from fromp.lab.engine.watch import console

    plans = tune.candidates(_plan(options, options.method), dict(map(tune.parse_values, options.grid)))
    out = options.out or Path("runs") / f"{options.benchmark}-{options.method}-tuning"
    options.first_task = options.first_task or out / "first-task"
    return tune.tune(plans, _seeds(options), out, _manner(options), console())


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _names(text: str | None) -> list[str]:
    """Those of a list with commas."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _plan(options: argparse.Namespace, method: str) -> Any:
    from fromp.lab.benchmarks.catalogue import parse_setting, require_known, settings_for, tuned
    from fromp.lab.methods.registry import METHODS
    from fromp.lab.results.plan import Plan

    require_known("method", method, METHODS)
    changes = dict(parse_setting(text) for text in options.set)
    if getattr(options, "task_free", False):
        changes = {"boundaries": "calibrated", "schedule": "constant", **changes}  # a decay would have to know the end
        if changes["boundaries"] == "given":
            raise FrompError("--task-free with boundaries=given is a contradiction; leave one of them out.")
    changes |= {k: v for k in ("memory", "tasks", "epochs") if (v := getattr(options, k)) is not None}
    plan = Plan(options.benchmark, method, settings_for(options.benchmark, changes, method))
    chosen = "strength" in changes or options.command is _tune or tuned(options.benchmark, method)
    if not chosen and not options.quiet:
        print(
            f"note: strength={plan.settings.strength:g} of {method} is a default that nobody has chosen for "
            f"{options.benchmark}; see `fromp tune {options.benchmark} --method {method} --grid strength=1,10,100`.",
            file=sys.stderr,
        )
    return plan


def _learn(plan: Any, out: Path, options: argparse.Namespace) -> int:
    from fromp.lab.engine.jobs import learn
    from fromp.lab.engine.watch import console

    return learn(plan, _seeds(options), out, _manner(options), console())


def _seeds(options: argparse.Namespace) -> list[int]:
    if options.seeds is not None and options.seeds < 1:
        raise FrompError(f"--seeds {options.seeds} is impossible; use at least 1.")
    if options.seed is not None and not 0 <= options.seed < 2**32:
        raise FrompError(f"--seed {options.seed} is impossible; use 0 to {2**32 - 1}.")
    return list(range(options.seeds)) if options.seeds else [options.seed or 0]


def _manner(options: argparse.Namespace) -> Any:
    from fromp.lab.engine.jobs import Execution

    if not options.checkpoint_seconds >= 0:
        raise FrompError(f"--checkpoint-seconds {options.checkpoint_seconds} is impossible; use zero or more.")
    return Execution(
        options.jobs, options.quiet, options.checkpoint_seconds, options.first_task, options.tensorboard, options.ray
    )


def _finish(out: Path, seed: int, console: Any) -> None:
    from fromp.lab import report
    from fromp.lab.engine.watch import boundaries_line
    from fromp.lab.results import store
    from fromp.lab.results.format import matrix_table, results_table

    found = store.read(out)
    result = next(one for one in found.seeds if one.seed == seed)
    console.print(matrix_table(result.accuracy).terminal(f"seed {seed}: accuracy after each task, %"))
    if result.boundaries is not None:
        console.print(boundaries_line(result.boundaries), highlight=False)
    console.print(results_table([found]).terminal(found.benchmark))
    console.print(f"report: {report.write(out)}", highlight=False, soft_wrap=True)


def _reproduce(options: argparse.Namespace) -> int:
    from fromp.lab.engine.jobs import Execution
    from fromp.lab.engine.watch import console
    from fromp.lab.paper import reproduce
    from fromp.lab.paper.exhibits import EXHIBITS, root_of

    root = options.out or root_of(options.quick)
    name = options.name or ("all" if options.quick else None)
    if name is None or options.list:
        console().print(reproduce.listing(root, options.quick))
        return 0
    names = list(EXHIBITS) if name == "all" else [name]
    if options.as_is:
        reproduce.render(names, root, options.quick, console())
        return 0
    execution = Execution(options.jobs, options.quiet, first_task=root / "first-task")
    return reproduce.reproduce(names, root, options.quick, execution, console())


def _report(options: argparse.Namespace) -> int:
    from fromp.lab import report

    print(report.write(options.folder))
    return 0


def _bench(options: argparse.Namespace) -> int:
    from fromp.lab import bench

    bench.main(options.out, options.quick)
    return 0


def _detect(options: argparse.Namespace) -> int:
    from fromp.lab.bench import detectors

    streams = _names(options.streams) or list(detectors.TRIALS)
    names = _names(options.detectors) or list(detectors.DETECTORS)
    if options.seeds < 1:
        raise FrompError(f"--seeds {options.seeds} is impossible; use at least 1.")
    detectors.main(options.out, streams, names, options.seeds, share=0.2 if options.quick else 1.0)
    return 0


def _list(options: argparse.Namespace) -> int:
    from fromp.lab.benchmarks.catalogue import BENCHMARKS
    from fromp.lab.engine.watch import console
    from fromp.lab.methods.registry import METHODS

    out = console()
    out.print("[bold]benchmarks[/bold]")
    for name, benchmark in BENCHMARKS.items():
        out.print(f"  {name:22} {benchmark.title}", highlight=False)
    out.print("[bold]methods[/bold]")
    out.print(f"  {', '.join(METHODS)}", highlight=False)
    return 0


def _methods(options: argparse.Namespace) -> int:
    from fromp.lab.engine.watch import console, methods_table

    console().print(methods_table())
    return 0


def _data(options: argparse.Namespace) -> int:
    from fromp.lab import data
    from fromp.lab.engine.watch import console, download_bar

    out = console()
    if options.action is None:
        for status in data.status():
            state = "here" if status.present else "not here"
            out.print(
                f"  {status.name:14} {state:9} {status.images:>7,} images   {status.where or status.how}",
                highlight=False,
            )
        return 0
    if options.name is None:
        raise FrompError(f"`fromp data fetch` needs a NAME; there are {', '.join(data.DATASETS)}.")
    with download_bar(out, options.name) as progress:
        where = data.fetch(options.name, options.folder, progress)
    out.print(f"{options.name}: {where}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
