"""The numbers the paper reports, in percent as printed, by benchmark and method."""

from dataclasses import dataclass

ERROR = "standard error"
DEVIATION = "standard deviation"
EITHER = "standard error or deviation"  # the paper calls the same numbers one in the text and the other in the table
UNSAID = "spread of a kind the paper does not name"


@dataclass(frozen=True)
class Reported:
    """A mean and its spread, as the paper prints them; `runs` is None where it does not say."""

    mean: float
    spread: float | None = None
    kind: str = ERROR
    runs: int | None = None

    def __str__(self) -> str:
        if self.spread is None:
            return str(self.mean)
        return f"{self.mean:.{max(_decimals(self.mean), _decimals(self.spread))}f} ± {self.spread}"

    def describe(self) -> str:
        """What the spread is, and over how many runs: empty if there is none."""
        if self.spread is None:
            return ""
        return self.kind if self.runs is None else f"{self.kind}, {self.runs} runs"


def _decimals(number: float) -> int:
    return len(str(number).partition(".")[2])


Printed = tuple[float, float | None]  # a mean and its spread


def _mnist(method: str, permuted: Printed, split: Printed) -> dict[tuple[str, str], Reported]:
    """A row of the table of MNIST comparisons."""
    return {
        ("permuted-mnist", method): Reported(*permuted, ERROR, 5),
        ("split-mnist", method): Reported(*split, ERROR, 5),
    }


def _toy(variation: str, fromp: Printed, joint: Printed) -> dict[tuple[str, str], Reported]:
    """A row of the table of toy variations; its batch Adam is the method `joint`."""
    return {
        (variation, "fromp"): Reported(*fromp, DEVIATION, 10),
        (variation, "joint"): Reported(*joint, DEVIATION, 3),
    }


def _cifar(mean: float, spread: float, kind: str = EITHER) -> Reported:
    return Reported(mean, spread, kind, 5)


AVERAGE_ACCURACY: dict[tuple[str, str], Reported] = {
    # MNIST comparisons (table in the main text)
    **_mnist("dlp", (82, None), (61.2, None)),
    **_mnist("ewc", (84, None), (63.1, None)),
    **_mnist("si", (86, None), (98.9, None)),
    **_mnist("vcl", (93, 1), (98.4, 0.4)),
    **_mnist("vcl-coreset", (94.6, 0.3), (98.2, 0.4)),
    **_mnist("frcl-random", (94.2, 0.1), (97.1, 0.7)),
    **_mnist("frcl-trace", (94.3, 0.2), (97.8, 0.7)),
    **_mnist("frorp-l2", (87.9, 0.7), (98.5, 0.2)),
    **_mnist("fromp-l2", (94.6, 0.1), (98.7, 0.1)),
    **_mnist("frorp", (94.6, 0.1), (99.0, 0.1)),
    **_mnist("fromp", (94.9, 0.1), (99.0, 0.1)),
    # Smaller network (appendix on Split MNIST)
    ("split-mnist-small", "fromp"): Reported(99.2, 0.1, DEVIATION, 5),
    # Split CIFAR (appendix, text and table of metrics)
    ("split-cifar", "separate"): _cifar(73.6, 0.4, ERROR),
    ("split-cifar", "joint"): _cifar(78.1, 0.3, ERROR),
    ("split-cifar", "si"): _cifar(73.5, 0.5, ERROR),
    ("split-cifar", "fromp-l2"): _cifar(75.6, 0.4, ERROR),
    ("split-cifar", "ewc"): _cifar(71.6, 0.9),
    ("split-cifar", "vcl-coreset"): _cifar(67.4, 1.4),
    ("split-cifar", "fromp"): _cifar(76.2, 0.4),
    # Toy variations (appendix), then the toy comparison, whose batch Adam has five runs
    **_toy("toy", (99.6, 0.2), (99.7, 0.0)),
    **_toy("toy-less-data", (99.9, 0.0), (99.7, 0.2)),
    **_toy("toy-more-data", (96.9, 3.0), (99.7, 0.0)),
    **_toy("toy-sixth-task", (97.8, 3.3), (99.6, 0.1)),
    **_toy("toy-larger-deviation", (96.0, 2.4), (96.9, 0.4)),
    **_toy("toy-overlapping", (90.1, 0.8), (91.1, 0.3)),
    ("toy", "frorp"): Reported(98.5, 0.6, DEVIATION),
    ("toy", "vcl-coreset"): Reported(92, 10, DEVIATION, 5),
    ("toy", "vcl-memorable"): Reported(85, 14, DEVIATION, 5),
    ("toy", "vcl"): Reported(68, 8, DEVIATION, 5),
    ("toy", "joint"): Reported(99.70, 0.03, DEVIATION, 5),
}

BACKWARD_TRANSFER: dict[tuple[str, str], Reported] = {
    ("split-mnist", "fromp"): Reported(-0.5, 0.2, UNSAID),
    ("permuted-mnist", "fromp"): Reported(-1.0, 0.1, UNSAID),
    ("split-cifar", "fromp"): _cifar(-2.6, 0.9, DEVIATION),
    ("split-cifar", "ewc"): _cifar(-2.3, 1.4, DEVIATION),
    ("split-cifar", "vcl-coreset"): _cifar(-9.2, 1.8, DEVIATION),
}

FORWARD_TRANSFER: dict[tuple[str, str], Reported] = {
    ("split-mnist", "fromp"): Reported(-0.07, 0.05, UNSAID),
    ("permuted-mnist", "fromp"): Reported(-1.9, 0.1, UNSAID),
    ("split-cifar", "fromp"): _cifar(6.1, 0.7, DEVIATION),
    ("split-cifar", "ewc"): _cifar(0.17, 0.9, DEVIATION),
    ("split-cifar", "vcl-coreset"): _cifar(1.8, 3.1, DEVIATION),
}

# What the paper calls some methods on the toy, and the benchmarks; what it does not have is named alike.
TOY_TITLES = {"joint": "batch Adam", "vcl-coreset": "VCL-RP", "vcl-memorable": "VCL-MP"}
BENCHMARK_TITLES = {
    "toy": "toy", "toy-less-data": "10x less data", "toy-more-data": "10x more data", "toy-sixth-task": "6th task",
    "toy-larger-deviation": "larger deviations", "toy-overlapping": "overlapping tasks", "split-mnist": "Split MNIST",
    "split-mnist-small": "Split MNIST, smaller network", "permuted-mnist": "Permuted MNIST",
    "split-cifar": "Split CIFAR", "split-cifar-11": "Split CIFAR, 11 tasks",
    "split-cifar-100": "Split CIFAR-100", "split-digits": "Split digits", "permuted-digits": "Permuted digits",
}  # fmt: skip


@dataclass(frozen=True)
class Best:
    """The highest average accuracy published since the paper, in percent, in the same setting, and who reports it."""

    accuracy: float
    by: str


# Same networks, memory and data as the benchmark; where a benchmark has other memory sizes, they follow the `@`.
BEST_SINCE: dict[str, Best] = {
    "permuted-mnist": Best(95.76, "S-FSVI"),
    "split-mnist": Best(99.54, "S-FSVI"),
    "split-mnist-class": Best(94.19, "SFR"),
    "split-mnist-class@40": Best(89.22, "SFR"),
    "split-fashion": Best(99.05, "S-FSVI"),
    "split-fashion-class": Best(82.03, "DER"),
    "split-cifar": Best(77.57, "S-FSVI, 200 epochs on task 1"),
}
