"""The Python API: compile, explain. What is compiled is loaded and run by `pitc.compiled`."""

import logging
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pitc.artifact.check import check_artifact
from pitc.artifact.folder import FULL, check_output, new_folder
from pitc.artifact.manifest import KERNELS, Options, Source
from pitc.collection import rare_collection
from pitc.compiled import CompiledModel
from pitc.errors import MachineError, ModelError, SuggestionWarning, UsageError
from pitc.ir.report import Report
from pitc.options import CompileOptions, Kind, Targets, spelled
from pitc.session import plain_session, quiet_options

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from pitc.codegen.build.cache import Cache
    from pitc.importer.memory import AnyModel
    from pitc.ir.kernel import KernelRequest
    from pitc.ir.prices import Prices
    from pitc.ir.tiles import TileTable
    from pitc.passes.pipeline import Lowered

_log = logging.getLogger("pitc.api")
#: Called with the name of each stage as it starts.
Progress = Callable[[str], None]
#: Called by the kernel builder: kernels done, kernels in all, symbol.
KernelProgress = Callable[[int, int, str], None]


@rare_collection()
def compile(
    model: "AnyModel",
    target: str = "auto",
    padding: str | Iterable[str] | None = None,
    *,
    output: str | Path | None = None,
    force: bool = False,
    dump_ir: str | Path | None = None,
    check: bool = False,
    suggest: bool = True,
    precision: str = "float32",
    tiles: "str | Path | TileTable | None" = None,
    cache: bool = True,
    progress: Progress | None = None,
    kernel_progress: KernelProgress | None = None,
) -> CompiledModel:
    """Compile a model.

    Args:
        model: An ONNX file, its bytes, or a model in memory, of any size: an `onnx.ModelProto` or
            an `onnx_ir.Model`. It is not changed.
        target: `auto` or `cpu` (kernels for AVX-512 and for AVX2), `cpu:v4`, `cpu:v3`; `cuda` (for
            every GPU architecture), `cuda:sm_80,sm_90`; or several, `cpu,cuda`: one artifact.
        padding: Which tokens do not exist. `attention_mask`: those where this input is 0. `!pad`:
            those where it is not 0. `input_ids:1`: those with token number 1. It may also be the
            name of a bool `[batch, sequence]` that the model computes, with or without `!`, or
            several masks, for several sequences. Outputs with one row per token are 0 at these
            tokens. Without it, every element of the result equals ONNX Runtime's.
        output: Write the artifact to this folder; None keeps it in a temporary one until `save`.
        force: Replace an existing artifact at `output`.
        dump_ir: Write one file per stage to this folder. For several kinds of machine, write to
            its folders `cpu` and `cuda`. The sources of kernels always go to these folders.
        check: Check the graph's invariants after each stage. A violation is a bug in pitc.
        suggest: If little is skipped, look for what would help. The result is in
            `report.suggestions` and in a `SuggestionWarning`. It takes about as long as the
            analysis itself.
        precision: `bf16`: products by constant matrices round both operands to bfloat16 and add up
            in float32, on CPUs that multiply such numbers (`docs/precision.md`).
        tiles: Prices of sparse contractions on CPUs, or a file with them. None: those that `pitc
            tune` has measured on this machine, else those that pitc contains.
        cache: Take compiled kernels from the user's cache folder, and store new ones there. This
            changes no byte of the artifact; the report says what was found.
        progress: Called with the name of each stage as it starts.
        kernel_progress: Called while kernels are built.

    Returns:
        The compiled model.

    Raises:
        UsageError: An option or the output folder cannot be used.
        ModelError: The model cannot be read, is not valid ONNX, or ONNX Runtime cannot load it.
        MachineError: A compiler is missing, or the disk is full.
    """
    stages = Path(dump_ir) if dump_ir is not None else None
    options = CompileOptions(target, spelled(padding), stages, check, suggest, precision=precision)
    source_path = Path(model) if isinstance(model, str | Path) else None
    if output is not None:
        check_output(Path(output), force=force, source=source_path)
    steps = _Steps(progress)
    from pitc.artifact.write import count_pit_nodes
    from pitc.importer.memory import imported_from

    # weights are there until the artifact is written
    with _folder_of(output) as (folder, scratch), imported_from(model) as read:
        imported, source = import_model(read, steps)
        if options.padding is not None:
            from pitc.passes.masks import padding_masks

            padding_masks(imported.clone(), options.padding)  # refused before anything is written
        _spare_weights(imported, folder)
        fallback = imported.clone()
        lowered = _lowered(read, imported, source, options, tiles, steps)
        for one in lowered.values():
            if not (one.report.changed or count_pit_nodes(one.model)):  # it compiles to itself
                one.model = fallback.clone()
        with new_folder(folder, force=force, lasting=scratch is None) as fresh:
            _write(fresh, lowered, fallback, options, source, steps, kernel_progress, cache)
        steps.end()
        reports: dict[Kind, Report] = {kind: one.report for kind, one in lowered.items()}
        for report in reports.values():
            report.stages_ms.update(steps.own_ms)
        made = CompiledModel(check_artifact(folder, hashes=False), reports, scratch)
    _warn(made.reports)
    return made


def _lowered(
    read: "Path | onnx.ModelProto",
    imported: "ir.Model",
    source: Source,
    options: CompileOptions,
    tiles: "str | Path | TileTable | None",
    progress: Progress | None,
) -> "dict[Kind, Lowered]":
    """What the passes make of a model for each kind of machine, if ONNX Runtime loads it."""
    found: dict[Kind, Lowered] = {}
    with loading_beside(read, imported):
        for kind in options.targets.kinds:
            prices = prices_of(kind, tiles)
            found[kind] = one = lower(imported.clone(), options, progress, prices, kind)
            one.report.model, one.report.target = source.name, options.target
            one.report.precision = options.precision_on(kind)
    return found


def _warn(reports: Mapping[Kind, Report]) -> None:
    """Say what would help, at the caller of `compile`."""
    texts = (f"{r.model}: {s.text}" for r in reports.values() for s in r.suggestions)
    for text in dict.fromkeys(texts):
        warnings.warn(text, SuggestionWarning, stacklevel=4)  # beyond the decorator of `compile`


def import_model(
    model: "str | Path | onnx.ModelProto", progress: Progress | None = None
) -> "tuple[ir.Model, Source]":
    """Read and check a model; its name (without folder) and checksum."""
    if progress:
        progress("import")
    from pitc.importer import load_source

    path = Path(model) if isinstance(model, str | Path) else model
    imported, sha256 = load_source(path)
    name = path.name if isinstance(path, Path) else f"{imported.graph.name or 'model'}.onnx"
    return imported, Source(name=name, sha256=sha256)


def stages() -> tuple[str, ...]:
    """Every stage of `compile`, in order, as `progress` sees them."""
    from pitc.passes import STAGES

    return ("import", *STAGES, "codegen", "write")


def prices_of(kind: Kind, tiles: "str | Path | TileTable | None" = None) -> "Prices":
    """The prices of sparse contractions on a kind of machine that a compilation uses.

    Args:
        kind: The machine; the prices of GPUs are a model's.
        tiles: The prices on CPUs, a file with them, or None for those in force on this machine.

    Raises:
        ArtifactError: The file is no tile table, or damaged.
        UsageError: It cannot be read.
    """
    if kind == "cuda":
        from pitc.ir.gpu_speed import GpuPrices

        return GpuPrices()
    from pitc.ir.tiles import TileTable
    from pitc.tiles.find import tables_in_force

    if isinstance(tiles, TileTable):
        return tiles
    return tables_in_force(None if tiles is None else Path(tiles)).table


@rare_collection()
def lower(
    model: "ir.Model",
    options: CompileOptions,
    progress: Progress | None = None,
    prices: "Prices | None" = None,
    kind: Kind = "cpu",
) -> "Lowered":
    """Run the passes on an imported model, which is changed in place.

    Args:
        model: The model.
        options: User options.
        progress: Called with the name of each stage as it starts.
        prices: Of sparse contractions; None: all stay dense.
        kind: Of the machine.
    """
    from pitc.ir.target import target_of
    from pitc.passes.pipeline import LowerOptions, run_passes

    targets = options.targets
    target = target_of(kind, targets.archs if kind == "cuda" else targets.levels)
    if options.precision_on(kind) == "bf16":
        target = replace(target, rounds=True)
    stages = options.dump_ir
    if stages is not None and len(targets.kinds) > 1:
        stages = stages / kind
    wanted = LowerOptions(
        options.padding,
        stages,
        prices,
        options.check,
        target,
        options.suggest,
        options.stop_after,
    )
    with _explained(options.dump_ir):
        return run_passes(model, wanted, progress)


def _write(
    folder: Path,
    lowered: "Mapping[Kind, Lowered]",
    fallback: "ir.Model",
    options: CompileOptions,
    source: Source,
    progress: Progress,
    kernel_progress: KernelProgress | None,
    cached: bool,
) -> None:
    """Fill an empty folder with the artifact; weights are written while kernels are compiled."""
    from pitc.artifact.weights import WeightFile
    from pitc.artifact.write import write_artifact
    from pitc.passes.lower.share import share_panels

    for one in lowered.values():
        share_panels(fallback, one.model, one.panels)
    requests = sorted({k for one in lowered.values() for k in one.kernels}, key=lambda k: k.symbol)
    compiled: dict[Kind, ir.Model] = {kind: one.model for kind, one in lowered.items()}
    reports: dict[Kind, Report] = {kind: one.report for kind, one in lowered.items()}
    progress("codegen")
    with WeightFile(folder) as weights:
        with weights.externalising([*compiled.values(), fallback]):
            identity = _build(folder, requests, options, reports, kernel_progress, cached)
        progress("write")
        write_artifact(
            folder,
            compiled=compiled,
            fallback=fallback,
            weights=weights.record(),
            source=source,
            options=Options(options.target, options.padding, options.precision),
            targets=options.targets,
            symbols=[request.symbol for request in requests],
            identity=identity,
            reports=reports,
        )


def _build(
    folder: Path,
    requests: "Sequence[KernelRequest]",
    options: CompileOptions,
    reports: Mapping[Kind, Report],
    progress: KernelProgress | None,
    cached: bool,
) -> str:
    """Build the kernel library, if any kernel is requested; its identity."""
    if not requests:
        return ""
    from pitc.codegen.build.cache import kernel_cache
    from pitc.codegen.build.library import build_kernels

    targets, cache = options.targets, kernel_cache() if cached else None
    place = folder / KERNELS
    built = build_kernels(requests, targets.levels, place, progress, targets.archs, cache)
    if cache is not None:
        for report in reports.values():
            report.cache_hits, report.cache_misses = cache.hits, cache.misses
    if options.dump_ir is not None:
        _dump_kernels(requests, targets, options.dump_ir, cache)
    return built.identity


def _dump_kernels(
    requests: "Sequence[KernelRequest]",
    targets: Targets,
    folder: Path,
    cache: "Cache | None",
) -> None:
    """Write what kernels are made of beside the stages: of CPUs TIR, LLVM IR and assembly; of GPUs
    sources, PTX and resource use.
    """
    on_cpus = [request for request in requests if request.kind != "cuda"]
    on_gpus = [request for request in requests if request.kind == "cuda"]
    with _explained(folder):
        if on_cpus:
            from pitc.codegen.build.cpu_dump import dump_cpu_kernels

            dump_cpu_kernels(on_cpus, targets.levels, folder / "cpu")
        if on_gpus:
            from pitc.codegen.build.cuda_dump import dump_cuda_kernels
            from pitc.codegen.build.cuda_library import compile_requests

            found = compile_requests(on_gpus, targets.archs, cache=cache, all_ptx=True)
            dump_cuda_kernels(*found[:2], folder / "cuda")


@contextmanager
def _explained(stages: Path | None) -> Iterator[None]:
    """What cannot be written to the folder of stages is the user's to mend."""
    try:
        yield
    except OSError as error:
        if stages is None:
            raise
        raised = MachineError if error.errno in FULL else UsageError
        reason = error.strerror or str(error)
        raise raised(f"stages cannot be written: {reason}", path=stages) from error


#: Domains whose operators ONNX Runtime has, or knows that it does not have.
_KNOWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")


@contextmanager
def loading_beside(source: "str | Path | onnx.ModelProto", imported: "ir.Model") -> Iterator[None]:
    """Refuse what ONNX Runtime refuses, in a thread of its own, beside what is done here with
    clones of the model: the compiled graph holds the same nodes.

    Operators of other domains come with a library of the program that runs the model.

    Raises:
        ModelError: ONNX Runtime refuses the model, whatever else went wrong meanwhile.
    """

    def load() -> None:
        try:
            graph = source if isinstance(source, str | Path) else source.SerializeToString()
            plain_session(graph, quiet_options(lasting=False))
        except ModelError:
            own = {function.domain for function in imported.functions.values()}
            if all(n.domain in (*_KNOWN_DOMAINS, *own) for n in imported.graph.all_nodes()):
                raise

    with ThreadPoolExecutor(1) as beside:
        loads = beside.submit(load)
        try:
            yield
        finally:
            loads.result()


def _spare_weights(imported: "ir.Model", output: Path) -> None:
    """Refuse to replace a folder that holds weights of the model."""
    import onnx_ir as ir

    folder = output.resolve()
    for graph in imported.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor) and Path(tensor.path).is_relative_to(folder):
                raise UsageError("the output would replace the model's weights", path=output)


@contextmanager
def _folder_of(output: str | Path | None) -> Iterator[tuple[Path, Path | None]]:
    """Where the artifact goes.

    Yields:
        The folder to make; and, where no output is asked for, the temporary one around it, which is
        removed when the block raises.
    """
    if output is not None:
        yield Path(output), None
        return
    try:
        scratch = Path(tempfile.mkdtemp(prefix="pitc-"))
    except OSError as error:
        text = f"no temporary folder can be made: {error.strerror or error}"
        raise MachineError(text, hint="set TMPDIR to a writable folder") from error
    try:
        yield scratch / "model.pitc", scratch
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def explain(
    model: "AnyModel",
    target: str = "auto",
    padding: str | Iterable[str] | None = None,
    *,
    dump_ir: str | Path | None = None,
    check: bool = False,
    suggest: bool = True,
    precision: str = "float32",
    tiles: "str | Path | TileTable | None" = None,
    stop_after: str = "",
    progress: Progress | None = None,
) -> dict[Kind, Report]:
    """What `compile` would do, without kernels and artifact: a report for each kind of machine.

    The other arguments, and the errors, are those of `compile`. `stop_after` names the last stage
    to run, `normalise`, `facts`, `regions` or `lower`, which decides for all nodes and is what ""
    stands for; the report holds what is known behind it.
    """
    from pitc.importer.memory import imported_from
    from pitc.passes import STAGES

    if stop_after not in ("", *STAGES):
        text, hint = f"no stage is named {stop_after!r}", f"stages: {', '.join(STAGES)}"
        raise UsageError(text, hint=hint)
    stages = Path(dump_ir) if dump_ir is not None else None
    options = CompileOptions(
        target, spelled(padding), stages, check, suggest, stop_after, precision
    )
    with imported_from(model) as read:
        imported, source = import_model(read, progress)
        lowered = _lowered(read, imported, source, options, tiles, progress)
    return {kind: one.report for kind, one in lowered.items()}


class _Steps:
    """Passes stage names on to the user, and times the stages that are not the passes'."""

    _OWN = ("import", "codegen", "write")

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._name, self._start = "", 0.0
        self.own_ms: dict[str, float] = {}

    def __call__(self, name: str) -> None:
        self.end()
        self._name, self._start = name, time.perf_counter()
        if self._progress:
            self._progress(name)

    def end(self) -> None:
        """Close the running stage."""
        took_ms = (time.perf_counter() - self._start) * 1e3
        if self._name:
            _log.info("%s took %.0f ms", self._name, took_ms)
        if self._name in self._OWN:
            self.own_ms[self._name] = took_ms
        self._name = ""
