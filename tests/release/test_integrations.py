"""pitc inside other libraries: each file of checks runs in their environment (`make libs`)."""

import os
import subprocess
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest
from filelock import FileLock

import pitc
from models import minilm
from models.minilm_folders import write_checkpoint, write_export

pytestmark = pytest.mark.thorough
ROOT = Path(__file__).parents[2]
LIBS = ROOT / ".venv-libs"
NEWEST = {"check_experts"}  # with the newest transformers
CHECKS = sorted((ROOT / "tests" / "integrations").glob("check_*.py"))
LAYERS = 2
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
    "BENTOML_DO_NOT_TRACK": "true",
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "examples" / "serving")]),
}


@pytest.fixture(scope="session")
def libs_python() -> Path:
    """The interpreter that has the libraries."""
    if not (LIBS / ".installed").exists() and "CI" not in os.environ:
        pytest.skip("the libraries are not installed: make libs")
    return LIBS / "bin" / "python"


@pytest.fixture(scope="session")
def encoder(libs_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MiniLM's export and checkpoint, and what pitc makes of the export; once for all processes."""
    if not minilm.installed():
        pytest.skip(f"the weights are not installed: {minilm.INSTALL}")
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "encoder"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            folder.mkdir()
            export = write_export(folder / "export", LAYERS)
            write_checkpoint(folder / "checkpoint", LAYERS)
            pitc.from_pretrained(export, output=folder / "compiled", padding="attention_mask")
    return folder


@pytest.mark.parametrize("check", CHECKS, ids=lambda path: path.stem.removeprefix("check_"))
def test_a_library(check: Path, libs_python: Path, encoder: Path) -> None:
    # warnings of other libraries are theirs
    run = [libs_python, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    words = [*run, "-W", "ignore", "--durations=5", check]
    kept = {name: v for name, v in os.environ.items() if not name.startswith("PYTEST_")}
    more = {"PITC_ENCODER": str(encoder)}
    if check.stem in NEWEST:
        more["PYTHONPATH"] = os.pathsep.join([str(LIBS / "newest"), ENVIRONMENT["PYTHONPATH"]])
    done = subprocess.run(
        list(map(str, words)),
        env=kept | ENVIRONMENT | more,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def _names() -> Iterator[str]:
    for folder in LIBS.glob("lib/python*/site-packages"):
        yield from (d.metadata["Name"].lower() for d in distributions(path=[str(folder)]))


def test_no_cuda_comes_with_them(libs_python: Path) -> None:
    found = {name for name in _names() if name.startswith(("nvidia", "triton"))}
    assert found <= {"nvidia-ml-py"}  # asks a driver for the number of GPUs, without CUDA
