"""ONNX Runtime with its CUDA provider, small enough to travel: one archive, for one architecture.

python -m benchmarks.gpu.provider WHEEL OUT.tar.xz           from the wheel of onnxruntime-gpu
python -m benchmarks.gpu.provider --download OUT.tar.xz      which pip fetches first
python -m benchmarks.gpu.provider --unpack OUT.tar.xz DIR    there: prints variables to run with

Machine code of other architectures is overwritten by zeros, so that nothing in the library moves,
and so is code that no encoder runs (`LEFT_OUT`). The driver reads the heads of all code, and the
code itself of what it loads: that it takes such a library is to be seen on a GPU.
"""

import argparse
import importlib.util
import io
import json
import lzma
import os
import shlex
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.fatbin import MACHINE_CODE, PTX, Entry, fat_binaries, kernels

REQUIREMENT, PYTHON = "onnxruntime-gpu==1.30.0", "3.12"
"""Built for CUDA 13, and for the Python of an image with PyTorch."""
_PLATFORMS = ("manylinux_2_27_x86_64", "manylinux_2_28_x86_64")
PROVIDER = "onnxruntime/capi/libonnxruntime_providers_cuda.so"
FACTS = "provider.json"
LIBRARIES = ("libcublasLt.so.13", "libcublas.so.13", "libcurand.so.10", "libcudart.so.13")
"""What it loads beside the driver: PyTorch for CUDA 13 brings them along."""
_FILTERS = (
    {"id": lzma.FILTER_X86},
    {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME},
)


@dataclass(frozen=True, slots=True)
class Rule:
    """Code that is left out: all of whose kernels have these words in their mangled names.

    Args:
        words: All of them.
        why: What it is for.
    """

    words: tuple[str, ...]
    why: str


LEFT_OUT = (
    Rule(("CollectiveMmaArray",), "experts: grouped products by TMA"),
    Rule(("MoeFCGemm",), "experts: grouped products of weights of few bits"),
    Rule(("moe_gemv",), "experts: one token"),
    Rule(("fpA_intB",), "weights of few bits"),
    Rule(("onnxruntime5flash", "bfloat16_t"), "attention in bfloat16"),
)
IDLE_KERNEL = "EmptyKernel"
"""A kernel that every file has that includes CUB: it says nothing of the others."""
KEPT = (
    "onnxruntime/__init__.py",
    "onnxruntime/LICENSE",
    "onnxruntime/ThirdPartyNotices.txt",
    "onnxruntime/capi/*.py",
    "onnxruntime/capi/onnxruntime_pybind11_state*.so",
    "onnxruntime/capi/libonnxruntime_providers_shared.so",
    PROVIDER,
    "*.dist-info/METADATA",
)
"""Files of the wheel: no TensorRT, no library for C, no tools."""


class ProviderError(Exception):
    """No archive can be made, or nothing can run with it."""


@dataclass(frozen=True, slots=True)
class Stripped:
    """A library whose code for other GPUs is gone.

    Args:
        image: Its bytes, as many as before.
        kept: Bytes of machine code that are left.
        others: Bytes that were for other architectures.
        left_out: Bytes that rules have left out, by what they were for.
    """

    image: bytes
    kept: int
    others: int
    left_out: Mapping[str, int]


def strip(image: bytes, arch: int, rules: Sequence[Rule] = LEFT_OUT) -> Stripped:
    """Overwrite code by zeros, but for what a GPU of an architecture takes.

    Args:
        image: A shared object with fat binaries.
        arch: 90 for sm_90.
        rules: What is left out of that.

    Raises:
        LayoutError: The fat binaries are laid out otherwise than is known.
        ProviderError: Nothing in it is for the architecture.
    """
    out, others, kept = bytearray(image), 0, 0
    left_out = dict.fromkeys((rule.why for rule in rules), 0)
    for entries in fat_binaries(image):
        own = _own(entries, arch)
        for entry in entries:
            is_named = entry is own and entry.kind == MACHINE_CODE and rules
            rule = _rule_for(kernels(image, entry), rules) if is_named else None
            if entry is own and not rule:
                kept += entry.size
                continue
            if rule:
                left_out[rule.why] += entry.size
            else:
                others += entry.size
            out[entry.at : entry.at + entry.size] = bytes(entry.size)
    if not kept:
        raise ProviderError(f"nothing in the library is for sm_{arch}")
    return Stripped(bytes(out), kept, others, left_out)


def _own(entries: Sequence[Entry], arch: int) -> Entry | None:
    """What the driver takes: the newest code of the generation, else the newest PTX."""
    code = [e for e in entries if e.kind == MACHINE_CODE and e.arch // 10 == arch // 10]
    text = [e for e in entries if e.kind == PTX]
    for some in (code, text):
        if fitting := [e for e in some if e.arch <= arch]:
            return max(fitting, key=lambda entry: entry.arch)
    return None


def _rule_for(names: set[str], rules: Sequence[Rule]) -> Rule | None:
    """The rule of the first kernel, if each has one."""
    told = sorted(name for name in names if IDLE_KERNEL not in name)
    each = [next((r for r in rules if all(w in name for w in r.words)), None) for name in told]
    return each[0] if each and all(each) else None


def make(wheel: Path, out: Path, arch: int = 90, rules: Sequence[Rule] = LEFT_OUT) -> None:
    """Write the archive.

    Args:
        wheel: Of onnxruntime-gpu.
        out: `.tar.xz`.
        arch: 90 for sm_90.
        rules: Code that is left out, too.

    Raises:
        LayoutError: The fat binaries are laid out otherwise than is known.
        ProviderError: The wheel has no CUDA provider, or none for the architecture.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = sorted(n for n in archive.namelist() if any(Path(n).match(p) for p in KEPT))
        if PROVIDER not in names:
            raise ProviderError(f"{wheel.name} has no {PROVIDER}")
        files = {name: archive.read(name) for name in names}
    stripped = strip(files[PROVIDER], arch, rules)
    facts = {"wheel": wheel.name, "arch": f"sm_{arch}", "kept_bytes": stripped.kept}
    facts |= {"other_archs_bytes": stripped.others, "left_out_bytes": dict(stripped.left_out)}
    files |= {PROVIDER: stripped.image, FACTS: (json.dumps(facts, indent=1) + "\n").encode()}
    out.parent.mkdir(parents=True, exist_ok=True)
    with (
        lzma.open(out, "wb", format=lzma.FORMAT_XZ, filters=list(_FILTERS)) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o755 if ".so" in name else 0o644
            tar.addfile(info, io.BytesIO(data))


def download(folder: Path) -> Path:
    """The wheel, by pip.

    Raises:
        ProviderError: pip cannot have it.
    """
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    command += ["--no-deps", "--only-binary=:all:", "--implementation=cp", f"--dest={folder}"]
    command += [f"--python-version={PYTHON}", *(f"--platform={name}" for name in _PLATFORMS)]
    if subprocess.run([*command, REQUIREMENT], check=False).returncode:
        raise ProviderError(f"pip cannot download {REQUIREMENT}")
    (wheel,) = folder.glob("onnxruntime_gpu-*.whl")
    return wheel


def unpack(archive: Path, folder: Path) -> dict[str, str]:
    """Unpack into a folder, and say with which variables it runs (`environment`)."""
    if not hasattr(tarfile, "data_filter"):
        raise ProviderError("to unpack it safely needs Python 3.11.4 or newer")
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "r:xz") as tar:
        tar.extractall(folder, filter="data")
    return environment(folder)


def environment(folder: Path) -> dict[str, str]:
    """Variables for a process that imports ONNX Runtime from the folder.

    Raises:
        ProviderError: This Python has not all of CUDA's libraries.
    """
    folders = list(library_folders())
    if lacking := [n for n in LIBRARIES if not any((Path(f) / n).exists() for f in folders)]:
        raise ProviderError(f"no package here has {', '.join(lacking)}")
    own = {"PYTHONPATH": [str(folder.resolve())], "LD_LIBRARY_PATH": folders}
    return {
        name: os.pathsep.join([*paths, *filter(None, [os.environ.get(name)])])
        for name, paths in own.items()
    }


def library_folders() -> Iterator[str]:
    """Where NVIDIA's packages for this Python have their libraries."""
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        yield from sorted(str(path) for path in Path(root).glob("*/lib"))


def main(words: Sequence[str] | None = None) -> None:
    """Make an archive, or unpack one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    parser.add_argument("--arch", type=int, default=90)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--download", action="store_true")
    how.add_argument("--unpack", action="store_true")
    given = parser.parse_args(words)
    if len(given.paths) != 2 - given.download:
        parser.error("expected a wheel and an archive, --download and one, or --unpack and both")
    try:
        if given.unpack:
            for name, value in unpack(*given.paths).items():
                print(f"export {name}={shlex.quote(value)}")
            return
        with tempfile.TemporaryDirectory() as folder:
            wheel = download(Path(folder)) if given.download else given.paths[0]
            make(wheel, given.paths[-1], given.arch)
    except (ProviderError, ValueError) as error:
        parser.exit(1, f"{error}\n")
    print(f"{given.paths[-1]}: {given.paths[-1].stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
