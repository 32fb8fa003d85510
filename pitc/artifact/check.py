"""Does an artifact run here, and what mends it when it does not."""

import os
import shlex
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from pitc.artifact.manifest import (
    CUDA_MODEL,
    FALLBACK,
    FILES,
    GRAPHS,
    KERNELS,
    MANIFEST,
    MODEL,
    SCHEMA,
    Manifest,
    file_record,
    parse_manifest,
    schema_of,
)
from pitc.errors import ArtifactError, UsageError, one_line
from pitc.host.machine import LEVEL_NAMES, cpu_level, runtime_version
from pitc.ir.plan import PLAN_VERSION
from pitc.options import NEON
from pitc.version import __version__

#: Where a folder that `from_pretrained` makes has its artifact.
PRETRAINED = "onnx"
#: The oldest ONNX Runtime whose plug-in interface runs PIT nodes.
ONNXRUNTIME_MIN = "1.23.2"


class Verdict(Enum):
    """The answer of a load check."""

    SUPPORTED = "supported"
    RECOMPILE = "supported, but recompile"
    UNSUPPORTED = "unsupported"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class Check:
    """Result of looking at an artifact.

    Args:
        folder: The artifact.
        verdict: The answer.
        manifest: Its manifest; None when that cannot be read.
        graph: File name of the graph to run here: `model.onnx`, `fallback.onnx` on a CPU without a
            level, or `model.cuda.onnx` where it was compiled for GPUs alone.
        problem: One line; empty when everything fits.
        expected: What should be there.
        found: What is there.
        mend: The command that mends it; empty when there is nothing to mend.
    """

    folder: Path
    verdict: Verdict
    manifest: Manifest | None = None
    graph: str = MODEL
    problem: str = ""
    expected: str = ""
    found: str = ""
    mend: str = ""

    @property
    def runs(self) -> bool:
        """True when the artifact can be run here."""
        return self.verdict in (Verdict.SUPPORTED, Verdict.RECOMPILE)

    def line(self) -> str:
        """Problem, expected, found and mend in one line."""
        text = self.problem
        if self.expected or self.found:
            text += f": expected {self.expected}, found {self.found}"
        return one_line(f"{text}; {self.mend}" if self.mend else text)

    def error(self) -> ArtifactError:
        """The error to raise when the artifact cannot be run."""
        message = f"{self.verdict.value}: {self.problem}"
        if self.expected or self.found:
            message += f": expected {self.expected}, found {self.found}"
        return ArtifactError(message, path=self.folder, hint=self.mend or None)


def check_artifact(folder: Path, *, hashes: bool = True, level: str | None = "auto") -> Check:
    """Look at an artifact without running it.

    Args:
        folder: The artifact.
        hashes: Read every file and compare its checksum; without it only names and sizes.
        level: The CPU level to check for; `auto` is this machine's.

    Raises:
        UsageError: There is no such folder, or it is no artifact.
    """
    if not os.path.isdir(folder):
        what = "it is a file" if os.path.exists(folder) else "it does not exist"
        raise UsageError(f"not an artifact: {what}", path=folder, hint="expected a folder *.pitc")
    folder = _artifact_in(folder)
    data = _read_manifest(folder)
    if isinstance(data, Check):
        return data
    found = schema_of(data)
    if found is not None and found != SCHEMA:
        return Check(
            folder,
            Verdict.UNSUPPORTED,
            problem="the artifact has another schema",
            expected=f"schema {SCHEMA} (pitc {__version__})",
            found=f"schema {found}",
            mend=recompile_command(folder, None),
        )
    try:
        manifest = parse_manifest(data)
    except (ValueError, RecursionError) as error:
        return _damaged(folder, None, MANIFEST, "a whole manifest", str(error).split("\n")[0])
    damage = _check_files(folder, manifest, hashes=hashes)
    return damage or _check_machine(folder, manifest, cpu_level() if level == "auto" else level)


def _artifact_in(folder: Path) -> Path:
    """The folder itself, or the one inside of it where `from_pretrained` puts the artifact.

    Raises:
        UsageError: It holds no manifest, and other files than an artifact's.
    """
    if os.path.lexists(folder / MANIFEST):
        return folder
    if (folder / PRETRAINED / MANIFEST).is_file():
        return folder / PRETRAINED
    try:
        there = os.listdir(folder)
    except OSError:  # what reads it says why
        return folder
    if there and all(name in FILES for name in there):
        return folder  # an artifact that has lost its manifest
    hint = "expected a folder *.pitc, as `pitc compile` makes it"
    raise UsageError(f"not an artifact: it holds no {MANIFEST}", path=folder, hint=hint)


def _read_manifest(folder: Path) -> bytes | Check:
    path = folder / MANIFEST
    try:
        if stat.S_ISREG(path.lstat().st_mode):
            return path.read_bytes()
        found = "something else"
    except FileNotFoundError:
        found = "nothing"
    except OSError as error:
        found = error.strerror or str(error)
    return _damaged(folder, None, MANIFEST, "a regular file", found)


def _check_files(folder: Path, manifest: Manifest, *, hashes: bool) -> Check | None:
    """The first thing in the folder that is not as the manifest says."""
    fault = next(_faults(folder, manifest, hashes=hashes), None)
    return fault and _damaged(folder, manifest, *fault)


def _faults(folder: Path, manifest: Manifest, *, hashes: bool) -> Iterator[tuple[str, str, str]]:
    """Files that are not as the manifest says: what was expected, and what was found."""
    listed = manifest.files
    try:
        there = set(os.listdir(folder))
    except OSError as error:
        yield ".", "a readable folder", error.strerror or str(error)
        return
    for name in sorted((there - {MANIFEST, *listed}) & set(FILES)):  # others are somebody else's
        yield name, "no such file", "one"
    for name in sorted(set(listed) - set(FILES)):
        yield name, "no such file", "one in the manifest"
    if FALLBACK not in listed or not set(GRAPHS.values()) & set(listed):
        yield MODEL if FALLBACK in listed else FALLBACK, "it in the manifest", "nothing"
    if (manifest.kernels is None) != (KERNELS not in listed):
        yield KERNELS, "it as the manifest describes it", "other"
    for name, record in listed.items():
        path = folder / name
        try:
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode):
                kind = "a link" if stat.S_ISLNK(status.st_mode) else "something else"
                yield name, "a regular file", kind
            if status.st_size != record.bytes:
                yield name, f"{record.bytes} bytes", f"{status.st_size}"
            if hashes and (sha := file_record(path).sha256) != record.sha256:
                yield name, f"sha256 {record.sha256}", sha
        except FileNotFoundError:
            yield name, "a regular file", "nothing"
        except OSError as error:
            yield name, "a readable file", error.strerror or str(error)


def _check_machine(folder: Path, manifest: Manifest, level: str | None) -> Check:
    """What this machine and these versions make of a sound artifact."""
    mend = recompile_command(folder, manifest, level)
    kernels = manifest.kernels
    for_cpus = MODEL in manifest.files
    if not manifest.pit_nodes:
        return _check_version(folder, manifest, MODEL if for_cpus else CUDA_MODEL, mend)
    if manifest.plan_version != PLAN_VERSION:
        plans = f"plan version {PLAN_VERSION}", f"{manifest.plan_version}"
        return Check(folder, Verdict.UNSUPPORTED, manifest, MODEL, "other plans", *plans, mend)
    runtime = runtime_version()
    if runtime is not None and _numbers(runtime) < _numbers(ONNXRUNTIME_MIN):
        versions = f"onnxruntime {ONNXRUNTIME_MIN} or newer", runtime
        text, mend = "ONNX Runtime is too old", f"pip install 'onnxruntime>={ONNXRUNTIME_MIN}'"
        return Check(folder, Verdict.UNSUPPORTED, manifest, MODEL, text, *versions, mend)
    if not for_cpus:  # what GPU there is, only its session can tell
        return _check_version(folder, manifest, CUDA_MODEL, mend)
    built: list[str] = [] if kernels is None else [*kernels.levels]
    if level is None and built:
        text, found = "this CPU runs the ordinary graph", "a CPU without them"
        wanted = " or ".join(LEVEL_NAMES[v] for v in built)
        return Check(folder, Verdict.SUPPORTED, manifest, FALLBACK, text, wanted, found)
    if level is not None and built and level not in built:
        # A v4 machine also runs v3 kernels; a v3 machine has nothing in an artifact for v4 only.
        graph = MODEL if level == "v4" and "v3" in built else FALLBACK
        text = "no kernels for this CPU's level" + ", ordinary graph used" * (graph != MODEL)
        levels = f"{level} ({LEVEL_NAMES[level]})", ", ".join(built)
        return Check(folder, Verdict.RECOMPILE, manifest, graph, text, *levels, mend)
    return _check_version(folder, manifest, MODEL, mend)


def _check_version(folder: Path, manifest: Manifest, graph: str, mend: str) -> Check:
    built = manifest.versions.get("pitc", "unknown")
    if built == __version__:
        return Check(folder, Verdict.SUPPORTED, manifest, graph)
    versions = f"pitc {__version__}", f"pitc {built}"
    text = "compiled by another version"
    return Check(folder, Verdict.RECOMPILE, manifest, graph, text, *versions, mend)


def recompile_command(folder: Path, manifest: Manifest | None, level: str | None = None) -> str:
    """The command that makes an artifact again. Its target is what any CPU of the kind can load."""
    words = ["pitc", "compile", manifest.source.name if manifest else "MODEL.onnx"]
    words += ["-o", str(folder), "--force"]
    if manifest is not None and MODEL not in manifest.files:
        words += ["--target", "cuda"]
    elif level == "neon":
        words += ["--target", NEON]
    if manifest is not None and manifest.options.padding is not None:
        words += ["--padding", manifest.options.padding]
    return "run: " + shlex.join(words)


def _damaged(
    folder: Path, manifest: Manifest | None, name: str, expected: str, found: str
) -> Check:
    mend = recompile_command(folder, manifest)
    return Check(folder, Verdict.DAMAGED, manifest, MODEL, name, expected, found, mend)


def _numbers(version: str) -> tuple[int, ...]:
    head = version.split("+")[0].split(".")
    return tuple(int(p) if p.isdigit() else 0 for p in head)
