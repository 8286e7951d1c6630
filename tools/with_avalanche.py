"""The plug-in for Avalanche in Avalanche itself, which the tests only imitate: its bits against a loop by hand.

    pip install --no-deps --target FOLDER avalanche-lib torchvision dill gdown beautifulsoup4 soupsieve torchmetrics \\
        lightning-utilities gputil setuptools pytorchcv
    PYTHONPATH=FOLDER:tests python tools/with_avalanche.py

Avalanche imports torchvision, whose operators do not load beside the CPU build of torch: they are declared without a
body here, as nothing of them is called. What else it imports and does not need is a mock.
"""

import sys
from unittest.mock import MagicMock

import torch
from oracles import stream

from fromp.integrations.avalanche import RegulariserPlugin

OPERATORS = "nms qnms roi_align roi_pool ps_roi_align ps_roi_pool deform_conv2d"
UNUSED = ("qpsolvers", "wandb", "tensorboard", "torch.utils.tensorboard")


def declare() -> torch.library.Library:
    """Make `import torchvision` work; the declarations last as long as what is returned."""
    library = torch.library.Library("torchvision", "DEF")
    for name in OPERATORS.split():
        library.define(f"{name}() -> ()")
        library.define(f"_{name}_backward() -> ()")
    for module in UNUSED:
        sys.modules.setdefault(module, MagicMock(__spec__=None))
    return library


def learn(model: torch.nn.Module, plugin: RegulariserPlugin, heads: list[list[int]] | None) -> None:
    """The tests' stream, an experience for each task."""
    from avalanche.benchmarks.scenarios.deprecated.generators import tensors_benchmark
    from avalanche.training.supervised import Naive

    tasks = [stream.task(k).tensors for k in range(stream.TASKS)]
    benchmark = tensors_benchmark(train_tensors=tasks, test_tensors=tasks, task_labels=[0] * len(tasks))
    head: list[int] | slice = slice(None)
    optimizer = torch.optim.Adam(model.parameters(), stream.LR)
    strategy = Naive(
        model=model, optimizer=optimizer, criterion=lambda f, y: torch.nn.functional.cross_entropy(f[:, head], y),
        train_mb_size=stream.BATCH, train_epochs=stream.EPOCHS, plugins=[plugin], evaluator=None,
    )  # fmt: skip
    for k, experience in enumerate(benchmark.train_stream):
        if heads is not None:
            head = plugin.how["head"] = heads[k]
        optimizer.state.clear()  # Adam restarts with each task
        strategy.train(experience, shuffle=False, drop_last=False)


def main() -> None:
    """Compare weights and memory, with FROMP and with MixedPast."""
    library = declare()
    import avalanche

    print("avalanche-lib", avalanche.__version__)
    for name, outputs, by_hand, make, heads in (
        ("FROMP", 3, stream.by_hand, stream.regulariser, None),
        ("MixedPast", 9, stream.mixed_by_hand, stream.mixed, stream.HEADS),
    ):
        expected, model = stream.network(outputs), stream.network(outputs)
        kept, plugin = by_hand(expected), RegulariserPlugin(make(model))
        learn(model, plugin, heads)
        stream.assert_equal(model, expected)
        stream.assert_same_memory(plugin.regulariser, kept)
        print(f"{name}: the bits of the loop by hand, {len(kept.memories)} tasks in memory")
    del library


if __name__ == "__main__":
    main()
