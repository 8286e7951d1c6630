"""The library stands alone: it needs torch and safetensors, and nothing of the laboratory."""

import subprocess
import sys

# What a user does, in a process that cannot import numpy or anything else that the laboratory needs.
SCRIPT = """
import sys, warnings

ABSENT = ("numpy", "scipy", "sklearn", "matplotlib", "rich", "filelock", "PIL", "joblib", "pydantic", "cyclopts")
for name in ABSENT:
    sys.modules[name] = None
warnings.simplefilter("ignore")  # torch says once that it has no numpy

import torch
from torch import nn
import fromp
from fromp import FROMP, Calibrated, Categorical, TaskFree, Welch

torch.manual_seed(0)
x, y = torch.randn(60, 4), torch.arange(60) % 3
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
reg = FROMP(model, Categorical(), memory_size=6)
reg.end_task((x, y))
with torch.no_grad():
    model[0].weight += 0.1
penalty = reg.penalty()
penalty.backward()
reg.save(sys.argv[1] + "/memory")
again = FROMP.load(sys.argv[1] + "/memory", model)
assert torch.equal(again.penalty(), penalty)
reg.predict(x)
optimizer = torch.optim.Adam(model.parameters())
for detector in (Calibrated(), Welch(), Calibrated.on_divergence(again)):
    learner = TaskFree(again, optimizer, detector, reservoir=60, min_task_examples=10)
    for _ in range(40):
        learner.observe(x, y)
    learner.save(sys.argv[1] + "/learner")
    learner.load(sys.argv[1] + "/learner")
print(*sorted(name for name in sys.modules if name.startswith("fromp.lab")))
"""


def test_it_works_without_numpy_and_loads_nothing_of_the_laboratory(tmp_path):
    done = subprocess.run([sys.executable, "-c", SCRIPT, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


def test_importing_it_loads_torch_safetensors_and_the_standard_library_alone():
    """Beside what torch itself loads."""
    script = """
import sys
import torch, torch.func, torch.utils.data, safetensors.torch
before = {name.split(".")[0] for name in sys.modules}
import fromp
for name in fromp.__all__:
    getattr(fromp, name)
new = {name.split(".")[0] for name in sys.modules} - before - set(sys.stdlib_module_names) - {"fromp"}
print(*sorted(new), *sorted(name for name in sys.modules if name.startswith("fromp.lab")))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
