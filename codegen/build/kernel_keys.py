"""What pieces of a kernel library depend on: the keys under which they are cached.

    object   one kernel for one CPU level                      -> object code
    code     what answers a request for GPUs, oldest device    -> CUDA text and host code
    image    one CUDA text for one device                      -> a cubin, or PTX

A key is a value: everything that can change the bytes is a field, so that models share what they
have in common. A field more than needed costs a hit; one that is missing, an answer.
"""

import functools
import json
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import distribution
from pathlib import Path

import pitc.ir
from pitc.codegen.build.cache import Cache
from pitc.ir.digest import named_sha256, sha256
from pitc.ir.kernel import KernelRequest
from pitc.ir.target import CpuLevel
from pitc.version import __version__

PACKAGES = ("apache-tvm", "apache-tvm-ffi")
"""What turns TIR into machine code; LLVM is a part of the first one."""

IR_MODULES = (
    *("__init__", "attention_tile", "cuda_target", "cuda_variants", "digest", "formula"),
    *("kernel", "panels", "plan", "seen", "target", "variants"),
)
SOURCES = (
    Path(__file__).parents[1],
    *(Path(pitc.ir.__file__).with_name(f"{name}.py") for name in IR_MODULES),
)
"""What writes TIR: this room, and the modules that it imports, directly or not."""


@dataclass(frozen=True, slots=True)
class Generator:
    """What makes code of a request.

    Args:
        pitc: Its version.
        sources: Digest of the sources that write TIR, and of those that they import.
        packages: Of every package that makes machine code of TIR, its name and a digest of what its
            files are.
        python: The interpreter.
        machine: System and processor, which LLVM takes for those of the target.
    """

    pitc: str
    sources: str
    packages: tuple[tuple[str, str], ...]
    python: str
    machine: str


@dataclass(frozen=True, slots=True)
class Key:
    """Of what a piece is made.

    Args:
        piece: `object`, `code` or `image`.
        source: The request that it answers; of an image its CUDA text.
        target: The CPU level, the oldest device (`sm_80`), or the image's `sm_XX` or `compute_XX`.
        maker: What makes it; of an image all that its compiler's work depends on besides.
    """

    piece: str
    source: KernelRequest | str
    target: CpuLevel | str
    maker: Generator | str

    @property
    def name(self) -> str:
        """The name of its entry: 64 hexadecimal digits."""
        return sha256(json.dumps(asdict(self), sort_keys=True))


def kept(cache: Cache | None, key: Key, make: Callable[[], bytes]) -> bytes:
    """A piece from the cache, or made and put there; without a cache it is made."""
    return make() if cache is None else cache.made(key.name, make)


@functools.cache
def generator() -> Generator | None:
    """The generator of this process; None where it cannot be told from another one."""
    packages = {name: distribution(name).read_text("RECORD") for name in PACKAGES}
    listed = {name: text for name, text in packages.items() if text is not None}
    if len(listed) < len(PACKAGES):
        return None
    return Generator(
        pitc=__version__,
        sources=named_sha256((name, path.read_bytes()) for name, path in source_files().items()),
        packages=tuple((name, sha256(text)) for name, text in listed.items()),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        machine=f"{platform.system()} {platform.machine()}",
    )


def source_files() -> dict[str, Path]:
    """The files that `Generator.sources` is of, by their place in their rooms."""
    found = {}
    for place in SOURCES:
        room = place if place.is_dir() else place.parent
        for path in sorted(place.rglob("*.py")) if place.is_dir() else (place,):
            found[f"{room.name}/{path.relative_to(room)}"] = path
    return found
