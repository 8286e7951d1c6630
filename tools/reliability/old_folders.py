"""Write a memory folder with the package that is on the path, for the tests that load folders of every format so far.

git worktree add /tmp/old COMMIT
PYTHONPATH=/tmp/old/src python tools/reliability/old_folders.py tests/oracles/folders/NAME   (/tmp/old before src/ was)
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from fromp import FROMP, Categorical, FullKernel, IdentityKernel

KERNELS: dict[str, Any] = {"full": FullKernel, "identity": IdentityKernel}


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out
    torch.manual_seed(0)
    expected = {}
    for name, kernel in KERNELS.items():
        model = network()
        reg = FROMP(model, Categorical(), tau=2.0, memory_size=6, jitter=1e-2, kernel=kernel)
        for head in ([0, 1], [2, 3]):
            reg.end_task((torch.randn(20, 4), torch.arange(20) % 2), head=head)
        reg.save(out / name)
        save_file({key: value.clone() for key, value in model.state_dict().items()}, out / f"{name}.safetensors")
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1.1)
        penalty = reg.penalty()
        penalty.backward()
        norms = [weight.grad.norm().item() for weight in model.parameters() if weight.grad is not None]
        expected[name] = {"penalty": penalty.item(), "gradient": norms}
    (out / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
