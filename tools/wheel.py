"""Build what is released, into `dist/`: both source archives, and a wheel from each.

    python -m tools.wheel                     what `make wheel` does
    python -m tools.wheel --twice             builds all a second time and compares the bytes

No container: zig's C++ compiler, which pip installs, links the plug-in library against the oldest
C library that a wheel's tag allows, whatever this machine has.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tools.parts import COMPILER, ROOT, RUNTIME, write_tree

MOST_RUNTIME_BYTES = 5_000_000
"""Of the wheel of `pitc-runtime`."""
_BACKEND = """
import json, sys
from scikit_build_core import build
hook, folder, settings = sys.argv[1:]
print(getattr(build, hook)(folder, json.loads(settings)))
"""


@dataclass(frozen=True, slots=True)
class Platform:
    """A platform that the plug-in library is built for.

    Args:
        machine: As CMake and Linux call it.
        zig: zig's name of it, with the oldest C library.
        tag: The wheel's.
    """

    machine: str
    zig: str
    tag: str


PLATFORMS = {
    "x86_64": Platform("x86_64", "x86_64-linux-gnu.2.17", "manylinux_2_17_x86_64"),
    "aarch64": Platform("aarch64", "aarch64-linux-gnu.2.17", "manylinux_2_17_aarch64"),
}


def compiler(platform: Platform) -> str:
    """The command of the C++ compiler for a platform, as CMake reads it from `CXX`."""
    return f"{sys.executable} -m ziglang c++ -target {platform.zig}"


def cmake_settings(platform: Platform) -> dict[str, str]:
    """What CMake is told to compile for a platform that is not this one."""
    return {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": platform.machine,
        # zig builds a C++ library for each kind of file that it links: one kind is enough. What
        # CMake links first, to learn of the compiler, is told by CXXFLAGS to do without.
        "CMAKE_TRY_COMPILE_TARGET_TYPE": "STATIC_LIBRARY",
        "CMAKE_CXX_FLAGS": "",
    }


def _run_backend(hook: str, source: Path, out: Path, settings: dict[str, str]) -> Path:
    """Call a hook of the build backend on a source tree; the file that it made."""
    out.mkdir(parents=True, exist_ok=True)
    beside = str(Path(sys.executable).parent)
    env = os.environ | {"PATH": os.pathsep.join([beside, os.environ.get("PATH", "")])}
    for platform in PLATFORMS.values():
        if settings.get("wheel.tags", "").endswith(platform.tag):
            env |= {"CXX": compiler(platform), "CXXFLAGS": "-O1 -nostdlib++"}
    command = [sys.executable, "-c", _BACKEND, hook, str(out.resolve()), json.dumps(settings)]
    done = subprocess.run(command, cwd=source, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{hook} of {source.name} failed:\n{done.stdout}\n{done.stderr}")
    return out / done.stdout.split()[-1]


def build_sdist(distribution: str, out: Path) -> Path:
    """Write the source archive of a distribution.

    Args:
        distribution: `pitc-runtime` or `pitc`.
        out: The folder for it.

    Returns:
        The archive.
    """
    with tempfile.TemporaryDirectory(prefix="pitc-sdist-") as scratch:
        tree = write_tree(distribution, Path(scratch, distribution))
        return _run_backend("build_sdist", tree, out, {})


def build_wheel(
    archive: Path, out: Path, platform: Platform | None = None, build_type: str = "Release"
) -> Path:
    """Build a wheel from a source archive alone.

    Args:
        archive: The source archive.
        out: The folder for the wheel.
        platform: Of the plug-in library; None where the archive has none.
        build_type: CMake's.

    Returns:
        The wheel.
    """
    settings = {"wheel.reproducible": "true"}
    if platform is not None:
        settings |= {"wheel.tags": f"py3-none-{platform.tag}", "cmake.build-type": build_type}
        defines = cmake_settings(platform) | {"Python3_EXECUTABLE": sys.executable}
        settings |= {f"cmake.define.{key}": value for key, value in defines.items()}
    with tempfile.TemporaryDirectory(prefix="pitc-wheel-") as scratch:
        with tarfile.open(archive) as packed:
            # Python 3.11 has filters from its patch 4 on.
            packed.extraction_filter = getattr(tarfile, "data_filter", None)
            packed.extractall(scratch)
        (source,) = Path(scratch).iterdir()
        return _run_backend("build_wheel", source, out, settings)


def check(wheel: Path) -> None:
    """Hold a wheel's machine code to its tag, by auditwheel's judgement.

    Args:
        wheel: With one platform in its name.

    Raises:
        SystemExit: It does not run on the oldest system that the tag promises.
    """
    promised = wheel.stem.rpartition("-")[2]
    command = [sys.executable, "-m", "auditwheel", "show", "--json", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"auditwheel: {done.stderr}")
    found = json.loads(done.stdout)["overall_tag"]
    if _glibc(found) > _glibc(promised):
        raise SystemExit(f"{wheel.name}: its tag promises {promised}, and it needs {found}")


def _glibc(tag: str) -> tuple[int, int]:
    """The C library of a tag: `manylinux_2_17_x86_64` is (2, 17)."""
    family, major, minor, *_ = tag.split("_")
    if family != "manylinux":
        raise SystemExit(f"the tag {tag} is none of any Linux")
    return int(major), int(minor)


def build_all(
    out: Path,
    platforms: Sequence[Platform],
    build_type: str = "Release",
    say: Callable[[str], None] = lambda _text: None,
) -> list[Path]:
    """Build both source archives and their wheels.

    Args:
        out: The folder for them.
        platforms: A wheel of the plug-in library for each.
        build_type: CMake's.
        say: Called before and after each file.

    Returns:
        The files.
    """
    made: list[Path] = []

    def make(what: str, build: Callable[[], Path]) -> Path:
        say(f"{what} ...")
        begin = time.monotonic()
        made.append(build())
        say(f"  {made[-1].name}, {time.monotonic() - begin:.0f} s")
        return made[-1]

    running = make(f"source archive of {RUNTIME}", partial(build_sdist, RUNTIME, out))
    compiling = make(f"source archive of {COMPILER}", partial(build_sdist, COMPILER, out))
    for platform in platforms:
        build = partial(build_wheel, running, out, platform, build_type)
        check(make(f"wheel of {RUNTIME} for {platform.machine}, a minute or more", build))
    make(f"wheel of {COMPILER}", partial(build_wheel, compiling, out))
    return made


def main() -> None:
    """Build, check, and say what was made."""
    parser = argparse.ArgumentParser(description="Build what is released, into dist/.")
    parser.add_argument("--twice", action="store_true", help="compare with a second build")
    options = parser.parse_args()
    platforms, out = [PLATFORMS["x86_64"]], ROOT / "dist"
    for distribution in (RUNTIME, COMPILER):
        for old in out.glob(f"{distribution.replace('-', '_')}-*"):
            old.unlink()
    say = partial(print, flush=True)
    made = build_all(out, platforms, say=say)
    with tempfile.TemporaryDirectory(prefix="pitc-twice-") as scratch:
        second = build_all(Path(scratch), platforms, say=say) if options.twice else []
        for path, other in zip(made, second, strict=False):
            if path.read_bytes() != other.read_bytes():
                raise SystemExit(f"{path.name}: two builds differ")
    for path in made:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        say(f"{digest}  {path.relative_to(ROOT)}  {path.stat().st_size:,} bytes")
    say("install them, here or elsewhere: pip install dist/*.whl")


if __name__ == "__main__":
    main()
