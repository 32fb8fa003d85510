"""Which artifact was made of which model: the same compilation again is a checked copy.

An artifact depends on its model, the options, the prices of tiles, pitc and what pitc builds with,
and on nothing else: of the same, the same bytes are made. The ledger is a part of the user's cache.
An entry says where an artifact was written, and the checksum of its manifest, which has all others.

    compile m.onnx -> a.pitc    makes it, and enters: a.pitc, with this manifest
    compile m.onnx -> b.pitc    copies a.pitc, if all bytes of m.onnx and of the copy are as it says

An entry is found by a sample of the model's file, so that a model that has none is not read for it.
A model that was changed, and an artifact that was moved, changed or deleted, is made as ever.
"""

import functools
import json
import os
import platform
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from pitc.artifact.folder import FULL, flush_file, new_folder
from pitc.artifact.manifest import MANIFEST, file_record, parse_manifest
from pitc.artifact.record import read_record
from pitc.codegen.build.cache import Cache
from pitc.errors import PitcError
from pitc.host.folders import cache_folder
from pitc.host.machine import BUILDERS, python_version
from pitc.ir.digest import file_sha256, files_sha256, joint_sha256, sha256
from pitc.options import CompileOptions

#: Nothing is looked up or entered: for tests, which compile the same with another compiler.
OFF = False

PACKAGES = (
    *((name,) for name in (*BUILDERS, "apache-tvm-ffi", "ml-dtypes", "mpmath", "networkx")),
    *(("protobuf",), ("pydantic",), ("pydantic-core",), ("sympy",)),
    ("onnxruntime", "onnxruntime-gpu"),
)
"""What an artifact is made with, or its model checked; each by the names that it may have."""
ROOMS = ("pitc", "pitc.passes", "pitc.codegen")
"""Where pitc's own files are."""
SAMPLES, SAMPLE_BYTES = 64, 4096
LIMIT_BYTES = 1 << 24  # of all entries, of which each has some hundred


@dataclass(frozen=True, slots=True)
class Compilation:
    """All that an artifact depends on, but for the bytes of its model that no sample holds.

    Args:
        model: The name of the model's file, which a manifest has.
        sample: Digest of its size and of some of its bytes.
        target: As asked for.
        padding: Mask input, or None.
        suggest: What would help is looked for; reports have it.
        prices: Of sparse contractions, as text.
        compilers: Of CUDA, as text; empty where none is needed.
        builders: Digest of what makes artifacts.
    """

    model: str
    sample: str
    target: str
    padding: str | None
    suggest: bool
    prices: str
    compilers: str
    builders: str

    @property
    def key(self) -> str:
        """The name of its entry."""
        text = json.dumps(["artifact", asdict(self)], sort_keys=True)
        return sha256(text)


@dataclass(frozen=True, slots=True)
class Entry:
    """An artifact that was made.

    Args:
        folder: Where it was written.
        manifest: Hexadecimal SHA-256 of its manifest.
        outside: Names of files beside the model that hold weights, sorted.
    """

    folder: str
    manifest: str
    outside: list[str]


def ledger_cache() -> Cache:
    """The user's entries."""
    return Cache(cache_folder() / "artifacts", LIMIT_BYTES)


class Ledger:
    """The entry of one compilation.

    Args:
        model: The model's file.
        options: The user's options.
        prices: Makes the text of the prices in force.
    """

    def __init__(self, model: Path, options: CompileOptions, prices: Callable[[], str]) -> None:
        self._model, self._cache = model, ledger_cache()
        self._key = "" if OFF else _key_of(model, options, prices)

    def find(self) -> Entry | None:
        """The entry, if there is one and the artifact seems to be where it was."""
        content = self._cache.get(self._key) if self._key else None
        if content is None:
            return None
        try:
            entry = read_record(Entry, json.loads(content))
            manifest = Path(entry.folder, MANIFEST)
            there = manifest.is_file() and file_sha256(manifest) == entry.manifest
        except (OSError, ValueError):
            return None
        return entry if there else None

    def copy(self, entry: Entry, target: Path, *, force: bool = False) -> bool:
        """Write the artifact of an entry to a folder.

        Args:
            entry: The entry.
            target: The folder to make.
            force: Replace an artifact that is there.

        Returns:
            False where the model or the artifact is not as the entry says; nothing is written then.

        Raises:
            UsageError: The target exists or cannot be written.
            MachineError: The disk is full or fails.
        """
        try:
            outside = _outside(self._model, entry.outside, target)
            with new_folder(target, force=force) as fresh:
                try:
                    _fill(fresh, entry, [self._model, *outside])
                except OSError as error:
                    if error.errno in FULL:
                        raise
                    raise _Differs from error  # of what is read, or compiling says what is wrong
        except (_Differs, ValueError):
            return False
        return True

    def enter(self, folder: Path, outside: Sequence[str]) -> None:
        """Keep in mind that the artifact was made.

        Args:
            folder: Where it is.
            outside: Names of files beside the model that hold weights, sorted.
        """
        if self._key:
            manifest = file_sha256(folder / MANIFEST)
            entry = Entry(str(folder.absolute()), manifest, list(outside))
            self._cache.put(self._key, json.dumps(asdict(entry)).encode())


class _Differs(Exception):
    """Model or artifact are not those of the entry."""


def _key_of(model: Path, options: CompileOptions, prices: Callable[[], str]) -> str:
    """The name of a compilation's entry; empty where it has none."""
    builders = _builders()
    if not builders or options.dump_ir is not None or options.check:
        return ""
    try:
        compilation = Compilation(
            model.name,
            _sample(model),
            options.target,
            options.padding,
            options.suggest,
            prices(),
            _cuda_compiler() if options.targets.archs else "",
            builders,
        )
    except (OSError, ValueError, PitcError):  # whoever compiles says what is wrong
        return ""
    return compilation.key


def _sample(path: Path) -> str:
    """A digest of the size of a file and of some of its bytes.

    Raises:
        OSError: It cannot be read, or is no regular file.
        ValueError: Its name holds a null character.
    """
    if not path.is_file():
        raise FileNotFoundError(path)
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        parts = [str(size).encode()]
        for place in range(0, size, max(size // SAMPLES, SAMPLE_BYTES)):
            file.seek(place)
            parts.append(file.read(SAMPLE_BYTES))
    return joint_sha256(parts)


@functools.cache
def _builders() -> str:
    """Digest of pitc, its packages and the interpreter; empty where they cannot be told."""
    parts: list[bytes | str] = [python_version(), platform.system(), platform.machine()]
    for names in PACKAGES:
        listed = [files for name in names if (files := _listed_files(name)) is not None]
        if not listed:
            return ""
        for files in listed:
            parts += [" ".join(names), files]
    for name, path in _own_files():
        parts += [name, path.read_bytes()]
    return joint_sha256(parts)


def _listed_files(package: str) -> str | None:
    """Names and checksums of a package's files; None where they are not known."""
    try:
        return distribution(package).read_text("RECORD")
    except PackageNotFoundError:
        return None


def _own_files() -> list[tuple[str, Path]]:
    """Every file of the compiler, in order of their names."""
    found = {}
    for room in ROOMS:
        folder = Path(str(import_module(room).__file__)).parent
        for path in folder.rglob("*"):
            if path.suffix not in (".pyc", ".so") and path.is_file():
                found[f"{room}/{path.relative_to(folder).as_posix()}"] = path
    return sorted(found.items())


def _cuda_compiler() -> str:
    from pitc.codegen.build.find_cuda import find_cuda_compiler

    return find_cuda_compiler().fingerprint


def _outside(model: Path, names: Sequence[str], target: Path) -> list[Path]:
    """The files beside a model, as the importer finds them.

    Raises:
        _Differs: One would be refused, or replaced by the artifact.
    """
    if not names:
        return []
    from pitc.importer.external_data import contained

    try:
        found = [contained(model, name) for name in names]
    except PitcError as error:
        raise _Differs from error
    if any(path.is_relative_to(target.resolve()) for path in found):
        raise _Differs
    return found


def _fill(folder: Path, entry: Entry, sources: Sequence[Path]) -> None:
    """Copy an artifact, and look at every byte of it and of its model.

    Raises:
        _Differs: They are not those of the entry.
        OSError: One of them cannot be read, or the copy cannot be written.
        ValueError: The artifact has no manifest.
    """
    shutil.copyfile(Path(entry.folder, MANIFEST), folder / MANIFEST)
    text = (folder / MANIFEST).read_bytes()
    if sha256(text) != entry.manifest:
        raise _Differs
    manifest = parse_manifest(text)
    digests = {n: r.sha256 for n, r in manifest.files.items()}
    with ThreadPoolExecutor() as pool:  # copying, hashing and flushing let go of the interpreter
        source = pool.submit(files_sha256, sources)
        for name in digests:
            shutil.copyfile(Path(entry.folder, name), folder / name)
            pool.submit(flush_file, folder / name)
        copies = pool.map(file_record, [folder / name for name in digests])
        found = {n: record.sha256 for n, record in zip(digests, copies, strict=True)}
        if found != digests or source.result() != manifest.source.sha256:
            raise _Differs
