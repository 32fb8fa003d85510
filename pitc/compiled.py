"""A compiled model: an artifact that is loaded and run, without the compiler."""

import logging
import shutil
import threading
import warnings
import weakref
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from pitc.artifact.check import Check, check_artifact
from pitc.artifact.folder import copy_folder
from pitc.artifact.manifest import FALLBACK, GRAPHS, MODEL, Manifest, report_from_dict
from pitc.errors import ArtifactError, MachineError, ModelError, PitcWarning, UsageError
from pitc.host.machine import lacking
from pitc.ir.plan import EP_NAME
from pitc.ir.report import Report
from pitc.options import Kind, parse_target
from pitc.session import (
    from_onnxruntime,
    lacks_operator,
    listed,
    option_at_fault,
    plain_session,
    quiet_options,
    run_session,
)

_log = logging.getLogger("pitc.session")


@cache
def _tell_lacking() -> None:
    """Say once why products of bfloat16 run in slower kernels, where nobody reads ONNX Runtime's
    log, in which the plug-in says it.
    """
    if why := lacking():
        _log.warning("%s", why)


class CompiledModel:
    """A compiled model in an artifact folder.

    `compile` and `load` return it. Many threads may use it at once.

    Attributes:
        path: The artifact folder. Of a model that was not saved, a temporary one that vanishes with
            this object.
        manifest: What was built, from what, by what.
    """

    def __init__(
        self,
        check: Check,
        reports: Mapping[Kind, Report] | None = None,
        scratch: Path | None = None,
        *,
        providers: Iterable[Kind] | None = None,
        threads: int | None = None,
    ) -> None:
        if not check.runs or check.manifest is None:
            raise check.error()
        self.path: Path = check.folder
        self.manifest: Manifest = check.manifest
        self._reports = reports
        self._check = check
        self._lock = threading.Lock()
        self._session: Any = None
        self._providers = _kinds(providers)
        self._threads = threads
        self._lasting = None if scratch is not None else self.path.absolute()
        if scratch is not None:
            weakref.finalize(self, shutil.rmtree, scratch, ignore_errors=True)

    def __repr__(self) -> str:
        return f"CompiledModel({str(self.path)!r}, {self.manifest.pit_nodes} PIT nodes)"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._lasting is None:
            hint = "save it first; the pickle holds only its path"
            raise UsageError("it is in a temporary folder, so it cannot be pickled", hint=hint)
        again = partial(load, providers=self._providers, threads=self._threads)
        return again, (str(self._lasting),)

    def __copy__(self) -> "CompiledModel":
        return self  # nothing in it changes

    def __deepcopy__(self, _: object) -> "CompiledModel":
        return self

    @property
    def report(self) -> Report:
        """What the compiler did and why, for the first of `kinds`; see `pitc explain`.

        Raises:
            ArtifactError: Another version of pitc wrote it, in another form.
        """
        return next(iter(self.reports.values()))

    @property
    def reports(self) -> Mapping[Kind, Report]:
        """The report of each of `kinds`.

        Raises:
            ArtifactError: Another version of pitc wrote them, in another form.
        """
        if self._reports is None:
            self._reports = read_reports(self._check)
        return self._reports

    def summary(self) -> str:
        """A few lines of text: what was done, which refusals cost most, and what would help.

        Raises:
            ArtifactError: Another version of pitc wrote its report, in another form.
        """
        from pitc.ir.summary import summary_text

        return "\n".join(summary_text(report) for report in self.reports.values())

    @property
    def graph(self) -> Path:
        """The graph that runs here: `model.onnx`, or `fallback.onnx` on a CPU without kernels."""
        return self.path / self._check.graph

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds of machine that it was compiled for, in the order in which they were named."""
        return parse_target(self.manifest.options.target).kinds

    def session(
        self,
        sess_options: Any = None,
        *,
        providers: Iterable[Kind] | None = None,
        threads: int | None = None,
    ) -> Any:
        """Make an `onnxruntime.InferenceSession` for the compiled graph.

        Args:
            sess_options: An `onnxruntime.SessionOptions`; the provider is added to it. None for the
                defaults, without log lines.
            providers: Kinds of machine to run on, `cuda` or `cpu`, in order of preference. If one
                cannot be used, a warning says why, and the next one is tried. None for those of
                `load`, else those that the model was compiled for.
            threads: Threads that share one run (`intra_op_num_threads`). None for those of `load`,
                else ONNX Runtime's default. With `sess_options`, set it there.

        Returns:
            A new session. It works also after this object is deleted.

        Raises:
            MachineError: The execution provider library is missing, or there is no GPU.
            ModelError: ONNX Runtime cannot load the source graph either, for example because of
                an operator that it does not know.
            UsageError: The model was not compiled for GPUs, a kind is unknown, `threads` is given
                with `sess_options`, or a compiled model cannot have these options.
        """
        quiet = sess_options is None
        sess_options = _options(sess_options, threads, self._threads)
        chosen = self._providers if providers is None else _kinds(providers)
        wanted = self.kinds if chosen is None else chosen
        if not wanted or any(kind not in list(GRAPHS) for kind in wanted):
            raise UsageError(f"providers {list(wanted)} are not some of {list(GRAPHS)}")
        for kind, other in zip(wanted, (*wanted[1:], None), strict=True):
            try:
                return self._session_on(kind, sess_options, quiet=quiet)
            except MachineError as error:
                if other is None:
                    raise
                text = f"{error.message}: {self.manifest.source.name} runs on {other}"
                warnings.warn(text, PitcWarning, stacklevel=2)
        raise AssertionError(wanted)

    def _session_on(self, kind: Kind, sess_options: Any, *, quiet: bool) -> Any:
        """A session on one kind of machine; `quiet` without ONNX Runtime's log."""
        if self._check.problem and kind == "cpu":
            warnings.warn(f"{self.path}: {self._check.line()}", PitcWarning, stacklevel=3)
        options = sess_options if sess_options is not None else quiet_options()
        try:
            graph = self.path / GRAPHS[kind]
            if not graph.exists() and kind == "cuda":
                hint = "compile it with --target cuda, or cpu,cuda"
                raise UsageError("it was not compiled for GPUs", path=self.path, hint=hint)
            if kind == "cpu" and (self._check.graph != MODEL or not self.manifest.pit_nodes):
                name = self._check.graph if graph.exists() else FALLBACK
                return plain_session(self.path / name, options)
            from pitc.runtime.library import make_cuda_session, make_session

            make = make_cuda_session if kind == "cuda" else make_session
            _log.info("a session on %s of %s", kind, graph)
            if quiet and kind == "cpu" and self.manifest.options.precision == "bf16":
                _tell_lacking()
            try:
                return make(graph, options)
            except Exception as error:
                if wrong := option_at_fault(error):
                    raise wrong from error
                if from_onnxruntime(error):  # is it the model, or what pitc has made of it?
                    plain_session(self.path / FALLBACK, sess_options)
                raise
        except ModelError as error:  # the folder may be a temporary one: name what the user knows
            hint = "operators from a library: --custom-ops, pitc.register_custom_ops, or register "
            hint += "it in the session options"
            raise ModelError(
                error.message,
                path=self.manifest.source.name,
                node=error.node,
                hint=hint if lacks_operator(error) else None,
            ) from error

    def run(
        self,
        inputs: Mapping[str, Any] | Iterable[Any],
        outputs: Iterable[str] | None = None,
        *,
        on_device: bool = False,
    ) -> dict[str, Any]:
        """Run the model.

        A tensor on a GPU must be ready on its library's current stream, as `__dlpack__` requires.
        The run waits for that, through the legacy default stream. When this method returns, the
        inputs have been read, and any stream may read the outputs.

        Args:
            inputs: A mapping by name, or a list (any iterable) with one value for each of the
                model's inputs in their order. A value is a NumPy array; an object with `__dlpack__`
                (torch, cupy) on the host or on the GPU that runs the model; an
                `onnxruntime.OrtValue`; or anything that NumPy converts to an array. A number gets
                the type of an input that is one float. Contiguous tensors are not copied. bfloat16
                and float8 values use DLPack or ml_dtypes.
            outputs: Names of the outputs to compute, in any iterable; None or an empty one for all.
            on_device: Leave outputs on the device that runs the model, the GPU or the host.

        Returns:
            A mapping from output names to arrays (bfloat16 of ml_dtypes, float8 as bytes);
            sequences are lists. With `on_device`, the values are `onnxruntime.OrtValue`s.
            `torch.from_dlpack` reads them without a copy (onnxruntime 1.27 or newer; bool is uint8
            before 1.32). Keep them until their readers are done.

        Raises:
            UsageError: An input is missing or unknown, has another type or rank, is on another
                device, or does not support DLPack; an output cannot stay on a device; or the model
                fails.
            MachineError: The GPU is lost. See also `session`.
        """
        with self._lock:
            if self._session is None:
                self._session = self.session()
        return run_session(self._session, inputs, outputs, on_device=on_device)

    def save(self, folder: str | Path, *, force: bool = False) -> Path:
        """Write the artifact to a folder, completely or not at all.

        Args:
            folder: The folder to make, usually `name.pitc`.
            force: Replace an artifact that is there.

        Returns:
            The folder.

        Raises:
            UsageError: The folder exists or cannot be written.
            MachineError: The disk is full.
        """
        target = Path(folder)
        copy_folder(self.path, target, force=force)
        if self._lasting is None:
            self._lasting = target.absolute()
        return target


def load(
    folder: str | Path,
    *,
    hashes: bool = True,
    providers: Iterable[Kind] | None = None,
    threads: int | None = None,
) -> CompiledModel:
    """Load an artifact.

    Args:
        folder: The artifact.
        hashes: Compare the checksum of every file first; without it only names and sizes are
            compared.
        providers: The default of `run` and `session`; see `CompiledModel.session`.
        threads: Likewise.

    Raises:
        ArtifactError: It is damaged, or does not run on this machine.
        UsageError: The folder does not exist, is not an artifact, or `threads` is not valid.
    """
    if threads is not None:
        check_threads(threads)
    with suppress(ImportError):  # a run needs it; imported, it tells its version by itself
        import_module("onnxruntime")
    check = check_artifact(Path(folder), hashes=hashes)
    return CompiledModel(check, providers=providers, threads=threads)


def _kinds(providers: Iterable[Kind] | None) -> tuple[Kind, ...] | None:
    """Kinds of machine as a caller gives them."""
    return None if providers is None else tuple(listed("kinds of machine", providers))


def check_threads(wanted: Any) -> None:
    """Refuse what is no number of threads.

    Raises:
        UsageError: It is no whole number of 1 or more.
    """
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
        raise UsageError(f"expected a number of threads of 1 or more, got {wanted!r}")


def _options(given: Any, threads: int | None, default: int | None) -> Any:
    """Session options with a number of threads: the caller's, ours, or None where none is wanted.

    Raises:
        UsageError: No number of threads, or options beside one.
    """
    wanted = default if threads is None else threads
    if wanted is not None:
        check_threads(wanted)
    if given is not None:
        if threads is not None:
            hint = "set intra_op_num_threads of the options"
            raise UsageError("threads beside session options", hint=hint)
        return given
    if wanted is None:
        return None
    options = quiet_options()
    options.intra_op_num_threads = wanted
    return options


def register() -> str:
    """Register pitc with ONNX Runtime, so that other libraries can name it as a provider.

    Afterwards, `onnxruntime.get_available_providers()` contains `PitExecutionProvider`, and
    `providers=["PitExecutionProvider"]` runs the `model.onnx` of an artifact. On a machine with an
    NVIDIA GPU, this also registers the provider for it. Any thread may call this function, any
    number of times.

    Returns:
        The provider's name.

    Warns:
        PitcWarning: This ONNX Runtime is older than 1.25.1 and accepts no plug-in provider by
            name. Sessions that pitc makes work.

    Raises:
        MachineError: ONNX Runtime is older than 1.23.2, or the library is missing.
    """
    import onnxruntime

    from pitc.runtime.library import register_ep

    name = register_ep()
    if name not in onnxruntime.get_available_providers():
        text = (
            f"onnxruntime {onnxruntime.__version__} does not take {name} by its name, 1.25.1 does: "
            "pip install 'onnxruntime>=1.25.1', or hand over pitc.load(folder).session() where "
            "your library takes a session"
        )
        warnings.warn(text, PitcWarning, stacklevel=2)
    return name


def get_library_path() -> Path:
    """Path of the execution provider library, for any program that uses ONNX Runtime."""
    from pitc.runtime.library import library_path

    return library_path()


def get_ep_name() -> str:
    """Name of the execution provider."""
    return EP_NAME


def read_reports(check: Check) -> dict[Kind, Report]:
    """The reports in an artifact, of every kind of machine that it was compiled for.

    Raises:
        ArtifactError: There is none, or not in the form of this version.
    """
    if check.manifest is None:
        raise check.error()
    try:
        if not check.manifest.reports:
            raise ValueError("there is no report")
        return {kind: report_from_dict(body) for kind, body in check.manifest.reports.items()}
    except ValueError as error:
        raise ArtifactError(str(error), path=check.folder, hint=check.mend or None) from error
