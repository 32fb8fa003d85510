"""A Python with ONNX Runtime on the emulated machine: Debian's, and the wheels of 64-bit Arm."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tests.aarch64.machine import EMULATOR
from tests.runtime_support import ROOT

KEPT = ROOT / "build" / "aarch64-python"
PACKAGES = ("python3.11-minimal", "libpython3.11-stdlib", "libstdc++6", "zlib1g")
"""Of Debian 12, with all that they need."""
WHEELS = ("onnxruntime", "numpy")
"""In the versions that are installed here."""
GLIBC = ("manylinux_2_28", "manylinux_2_27", "manylinux2014")
CORES = 2
CPU = """processor\t: {0}
BogoMIPS\t: 125.00
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd08
CPU revision\t: 3

"""
"""A Cortex-A72, as Linux tells it. The emulator shows this machine's otherwise, whose lines of
another architecture end ONNX Runtime 1.30 and later."""


class Unavailable(Exception):
    """It cannot be had here; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What runs models.

    Args:
        name: Its name.
        threads: Of a session.
        command: Its Python.
        environment: For that.
    """

    name: str
    threads: int
    command: Sequence[str]
    environment: Mapping[str, str]


def python(cpu: str, threads: int, library: Path) -> Machine:
    """The emulated machine with a Python, which is fetched if it is not there.

    Args:
        cpu: The emulator's name of a CPU.
        threads: Of a session.
        library: The plug-in.

    Raises:
        Unavailable: A program or the network is missing.
    """
    names = [f"{name}-{version(name)}" for name in WHEELS]
    folder = KEPT / "-".join(names)
    if not folder.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=KEPT, prefix="making-") as scratch:
            root = Path(scratch, "root")
            _system(Path(scratch), root)
            _wheels(root / "site")
            (root / "proc").mkdir()
            (root / "proc" / "cpuinfo").write_text("".join(map(CPU.format, range(CORES))))
            root.rename(folder)
    command = [EMULATOR[0], "-cpu", cpu, "-L", str(folder), str(folder / "usr/bin/python3.11")]
    path = os.pathsep.join([str(folder / "site"), str(ROOT)])
    given = {"PYTHONPATH": path, "PITC_EP_LIBRARY": str(library), "PYTHONDONTWRITEBYTECODE": "1"}
    return Machine(cpu, threads, command, os.environ | given)


def _system(scratch: Path, root: Path) -> None:
    """Unpack the packages; apt keeps its books in a folder of its own, and installs nothing."""
    if missing := [name for name in ("apt-get", "dpkg-deb") if not shutil.which(name)]:
        raise Unavailable(f"no {missing[0]}: it needs Debian 12")
    for name in ("lists/partial", "cache/archives/partial"):
        (scratch / name).mkdir(parents=True)
    (scratch / "status").touch()
    places = {"State::lists": "lists", "State::status": "status", "Cache": "cache"}
    settings = [f"Dir::{key}={scratch / name}" for key, name in places.items()]
    settings += ["APT::Architecture=arm64", "APT::Architectures=arm64", "APT::Sandbox::User=root"]
    settings += ["APT::Get::List-Cleanup=0", "Debug::NoLocking=1"]
    apt = ["apt-get", "-qq", *(word for text in settings for word in ("-o", text))]
    _fetch([*apt, "update"])
    _fetch([*apt, "install", "-y", "--download-only", "--no-install-recommends", *PACKAGES])
    for file in sorted(scratch.glob("cache/archives/*.deb")):
        _fetch(["dpkg-deb", "-x", str(file), str(root)])


def _wheels(site: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "install", "--no-deps"]
    platforms = [word for tag in GLIBC for word in ("--platform", f"{tag}_aarch64")]
    which = ["--only-binary=:all:", "--python-version", "3.11", *platforms]
    _fetch([*pip, *which, "--target", str(site), *(f"{n}=={version(n)}" for n in WHEELS)])


def _fetch(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "-").splitlines()[-1]
        raise Unavailable(f"{command[0]} failed, which needs the network: {said}")
