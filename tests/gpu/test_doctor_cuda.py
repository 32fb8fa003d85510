"""What `pitc doctor` says of CUDA: compilers, drivers and devices, there or not."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pitc.codegen.build import find_cuda, nvrtc
from pitc.codegen.build.link import find_compiler
from pitc.errors import MachineError
from pitc.host import cuda, doctor
from pitc.host.cuda import CudaDevice, CudaDriver, cuda_driver, has_nvidia_gpu
from pitc.host.doctor import Finding

FAKE = Path(__file__).parents[1].joinpath("fake_libcuda.c")
H100 = CudaDevice("NVIDIA H100 80GB HBM3", "sm_90", 85_000_000_000)
A100 = CudaDevice("NVIDIA A100", "sm_80", 40_000_000_000)
COMPILER = "CUDA compiler"
Says = Callable[..., list[Finding]]


@pytest.fixture(name="driver", scope="module")
def _driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    options = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", str(FAKE), "-o", str(path)]
    subprocess.run([*find_compiler(), *options], check=True)
    return path


@pytest.fixture(name="says")
def _says(driver: Path, monkeypatch: pytest.MonkeyPatch) -> Says:
    """What is found with a driver (a CUDA version, what cuInit returns, devices), or without."""

    def find(version: int | None, init: int = 0, devices: int = 0) -> list[Finding]:
        # ctypes passes the environment of the process on.
        monkeypatch.setenv("FAKE_CUDA_VERSION", str(version))
        monkeypatch.setenv("FAKE_CUDA_INIT", str(init))
        monkeypatch.setenv("FAKE_CUDA_DEVICES", str(devices))
        monkeypatch.setattr(cuda, "DRIVER", str(driver) if version else "libpitc-absent.so.1")
        return list(doctor._cuda())

    return find


def test_a_machine_without_a_gpu_is_fine(says: Says, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "has_nvidia_gpu", lambda: False)
    compiler, driver = says(None)
    assert compiler.status == "ok" and compiler.detail.startswith("nvrtc-13.")
    assert driver == Finding("CUDA driver", "ok", "none, and no NVIDIA GPU")


def test_a_gpu_without_a_driver(says: Says, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "has_nvidia_gpu", lambda: True)
    fix = "install NVIDIA's driver"
    assert says(None)[1:] == [Finding("CUDA driver", "warn", "none, but an NVIDIA GPU", fix)]


def test_devices_are_listed(says: Says) -> None:
    assert says(13000, devices=2)[1:] == [
        Finding("CUDA driver", "ok", "CUDA 13.0"),
        Finding("CUDA device 0", "ok", "NVIDIA H100 80GB HBM3: sm_90, 85 GB"),
        Finding("CUDA device 1", "ok", "NVIDIA A100: sm_80, 40 GB"),
    ]
    assert cuda_driver() == CudaDriver((13, 0), (H100, A100))
    assert says(13020, init=100)[1:] == [Finding("CUDA driver", "ok", "CUDA 13.2, no device")]


def test_a_driver_that_is_older_than_the_compiler(says: Says) -> None:
    driver, device = says(12080, devices=1)[1:]
    assert driver.status == "warn" and device.status == "ok"
    assert driver.detail == "CUDA 12.8, which cannot load kernels compiled by CUDA 13"
    assert "pip install nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12" in driver.fix


def test_a_driver_that_does_not_work(says: Says) -> None:
    (driver,) = says(13000, init=999)[1:]
    assert (driver.status, driver.detail) == (
        "warn",
        "does not work: cuInit: CUDA_ERROR_UNKNOWN (999)",
    )
    assert driver.fix
    with pytest.raises(MachineError, match="CUDA_ERROR_UNKNOWN"):
        cuda_driver()


def test_without_a_compiler(says: Says, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "PACKAGES", (("pitc-absent", "pitc-absent"),))
    monkeypatch.setenv("PATH", "/nowhere")
    packages = "pip install 'nvidia-cuda-nvrtc>=13,<14' 'nvidia-cuda-runtime>=13,<14'"
    text = f"none; to compile for NVIDIA GPUs: {packages}"
    assert says(12080)[:2] == [
        Finding(COMPILER, "ok", text),
        Finding("CUDA driver", "ok", "CUDA 12.8, no device"),  # no compiler that is too new
    ]
    monkeypatch.setenv(find_cuda.VARIABLE, "nvcc")
    asked = "PITC_CUDA_COMPILER asks for nvcc, which is not installed"
    assert says(None)[0] == Finding(COMPILER, "warn", asked, "add its folder to PATH")
    monkeypatch.setenv(find_cuda.VARIABLE, "icc")
    assert says(None)[0].status == "warn" and "'icc'" in says(None)[0].detail


def test_gpus_are_told_by_vendor_and_class(tmp_path: Path) -> None:
    assert not has_nvidia_gpu(tmp_path / "absent")
    for name, vendor, kind in (
        ("audio", "0x10de", "0x040300"),
        ("other", "0x1002", "0x030000"),
        ("half", "0x10de", None),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        if kind:
            (tmp_path / name / "class").write_text(f"{kind}\n")
    assert not has_nvidia_gpu(tmp_path)
    (tmp_path / "half" / "class").write_text("0x030200\n")
    assert has_nvidia_gpu(tmp_path)
