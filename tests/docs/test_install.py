"""What an install brings, beside what torch needs itself; and versions with known incidents, which are excluded."""

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from reliability.counts import PROJECT, brought

EXTRAS = PROJECT["optional-dependencies"]
BRINGS = {
    "lab": "annotated-types attrs cloudpickle contourpy cycler cyclopts docstring-parser fonttools joblib kiwisolver "
    "markdown-it-py matplotlib mdurl narwhals numpy packaging pillow pydantic pydantic-core pygments pyparsing "
    "python-dateutil rich rich-rst scikit-learn scipy six threadpoolctl typing-inspection tzdata",
    "learn": "attrs cyclopts docstring-parser markdown-it-py mdurl numpy pillow pyarrow pygments rich rich-rst",
}
INCIDENTS = {  # the first version without it
    "torch": "2.6.0",  # CVE-2025-32434: torch.load(weights_only=True) ran code
    "pillow": "10.3.0",  # CVE-2023-50447, CVE-2024-28219
    "pyarrow": "14.0.1",  # CVE-2023-47248: reading a file ran code
    "jinja2": "3.1.6",  # CVE-2025-27516
    "scikit-learn": "1.5.0",  # CVE-2024-5206
    "joblib": "1.2.0",  # CVE-2022-21797
    "filelock": "3.20.3",  # CVE-2025-68146, CVE-2026-22701: a planted link was followed
    "pydantic": "2.4.0",  # CVE-2024-3772
    "lightning": "2.6.6",  # two earlier releases carried foreign code
}


def test_the_library_brings_two_packages():
    assert [Requirement(line).name for line in PROJECT["dependencies"]] == ["torch", "safetensors"]
    assert brought(PROJECT["dependencies"]) - brought(["torch"]) == {"safetensors"}


@pytest.mark.parametrize("extra", BRINGS)
def test_an_extra_brings_what_is_listed(extra):
    new = brought(EXTRAS[extra]) - brought(["torch"])
    assert new <= set(BRINGS[extra].split()), f"not listed: {new - set(BRINGS[extra].split())}"
    assert len(new) >= len(BRINGS[extra].split()) - 3  # some come only with some versions


def test_versions_with_known_incidents_are_excluded():
    for line in [*PROJECT["dependencies"], *(line for extra in EXTRAS.values() for line in extra)]:
        one = Requirement(line)
        if first := INCIDENTS.get(one.name):
            lowest = [Version(part.version) for part in one.specifier if part.operator == ">="]
            assert lowest, f"{line} has no lower bound"
            assert lowest[0] >= Version(first), f"{line} allows versions before {first}"


def test_the_workflow_covers_the_supported_versions():
    root = Path(__file__).parents[2]
    workflow = (root / ".github/workflows/test.yml").read_text()
    python = re.findall(r"python: \[(.+)\]", workflow)[0].replace('"', "").split(", ")
    assert python == [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if ":: Python :: 3" in name]
    assert PROJECT["requires-python"] == f">={python[0]}"
    (pinned,) = re.findall(r"^torch==(\S+)$", (root / "constraints.txt").read_text(), re.M)
    (lowest,) = [Requirement(line) for line in PROJECT["dependencies"] if line.startswith("torch")]
    assert re.findall(r'torch: \["(.+)"\]', workflow) == [pinned]
    (oldest,) = re.findall(r'torch: "(.+?)"\}', workflow)
    assert str(lowest.specifier) == f">={oldest.removesuffix('.0')}"
