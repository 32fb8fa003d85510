"""Find the execution provider's library, register it, and make sessions that use it."""

import ctypes
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pitc.runtime
from pitc.errors import ArtifactError, MachineError, PitcError, UsageError
from pitc.ir.plan import CUDA_EP_NAME, EP_NAME

if TYPE_CHECKING:
    import onnxruntime

__all__ = [
    "CUDA_EP_NAME",
    "EP_NAME",
    "cuda_devices",
    "device_of",
    "library_path",
    "make_cuda_session",
    "make_session",
    "register_ep",
]

CUDA_PROVIDER = "CUDAExecutionProvider"
"""ONNX Runtime's own."""

LIBRARY_NAME = "libpitc_ort_ep.so"
OLDEST_ONNXRUNTIME = (1, 23, 2)
NODES_IN_BODIES = (1, 24)
"""Before it, kernels of a subgraph had the names of those outside."""
IN_BODIES = "Conflicting with a registered kernel", "Cannot load unknown initializer"
"""What it said then; the latter where such a node reads a constant from outside."""
OURS = re.compile(r"pitc: node '(.*?)' \(\w+\): ([^;]*)(?:; )?(.*)")
"""What the library says of a node: its name, what is wrong, what to do."""
REFUSALS: Mapping[str, tuple[type[PitcError], str | None]] = {
    "expected kernels ": (ArtifactError, None),
    "expected code of kernel ": (MachineError, None),
    "cannot load kernel ": (MachineError, None),
    "out of device memory": (MachineError, "another program may hold it: see nvidia-smi"),
}
"""How that begins where a session cannot be made; what it is, and what to do if it does not say."""
OPTIONS = frozenset({"cpu_level", "huge_pages", "task_trace", "threads", "trace", "variant"})

# ONNX Runtime hands provider options to the library as session config entries with this prefix. The
# entry `attached` is ours alone: it marks a SessionOptions object that has the provider already:
# for `cpu`, or for the GPU of that number.
_PREFIX = f"ep.{EP_NAME.lower()}."
_ATTACHED = f"{_PREFIX}attached"

_lock = threading.Lock()


def library_path() -> Path:
    """The library, as an absolute path.

    The environment variable `PITC_EP_LIBRARY`, if set, names the file (for work on the library
    itself). Else it lies in one of this package's folders: in an editable installation, not the
    one of this file.

    Raises:
        MachineError: There is no such file.
    """
    chosen = os.environ.get("PITC_EP_LIBRARY")
    if chosen:
        if not Path(chosen).is_file():
            raise MachineError("PITC_EP_LIBRARY names no file", path=chosen)
        return Path(chosen).resolve()
    for folder in pitc.runtime.__path__:
        candidate = Path(folder, LIBRARY_NAME)
        if candidate.is_file():
            return candidate.resolve()
    raise MachineError(
        f"{LIBRARY_NAME} is not built",
        hint="install pitc, or build runtime/ and set PITC_EP_LIBRARY",
    )


def register_ep() -> str:
    """Register the library with ONNX Runtime, once per process, and return the provider's name.

    Raises:
        MachineError: ONNX Runtime is too old, the library is missing or it cannot be loaded.
    """
    import onnxruntime

    if _version() < OLDEST_ONNXRUNTIME:
        oldest = ".".join(map(str, OLDEST_ONNXRUNTIME))
        raise MachineError(f"expected onnxruntime {oldest} or newer, got {onnxruntime.__version__}")
    with _lock:
        if not _devices():
            path = library_path()
            try:
                onnxruntime.register_execution_provider_library("pitc", str(path))
            except Exception as error:
                raise MachineError(f"ONNX Runtime cannot load it: {error}", path=path) from error
    return EP_NAME


def cuda_devices() -> list["onnxruntime.OrtEpDevice"]:
    """NVIDIA GPUs that run PIT nodes which were compiled for them, one device for each.

    A session gets one of them with `SessionOptions.add_provider_for_devices([device], {})`; the
    option `trace` names a file to which each run of a node appends what it had to copy between
    host and device. Their `ep_metadata` tell `cuda_device` (its number), `name` and `arch`.

    Raises:
        MachineError: See `register_ep`; or there is no GPU, with the reason.
    """
    register_ep()
    if devices := _devices(CUDA_EP_NAME):
        return devices
    path = library_path()
    trouble = getattr(ctypes.CDLL(str(path)), "PitcCudaTrouble", None)
    if trouble is None:
        raise MachineError("it is of a version without GPUs", path=path, hint="install pitc again")
    trouble.restype = ctypes.c_char_p
    reason = (trouble() or b"ONNX Runtime was offered none").decode(errors="replace")
    hint = "pitc doctor tells more; compiled for cuda,cpu a model also runs without a GPU"
    raise MachineError(f"no CUDA device: {reason}", hint=hint)


def make_session(
    model_path: str | os.PathLike[str] | bytes,
    sess_options: "onnxruntime.SessionOptions | None" = None,
    provider_options: Mapping[str, str] | None = None,
) -> "onnxruntime.InferenceSession":
    """Load a compiled model into an ONNX Runtime session.

    Args:
        model_path: The `model.onnx` of an artifact; its kernels lie beside it. Or a graph in
            memory; then `ep.context_file_path` in the options tells where they lie.
        sess_options: The caller's options. The provider is added to them, and nothing else is
            changed; the same object may serve for several sessions.
        provider_options: `cpu_level`: `v3`, `v4`, ..: use its kernels (default: what `PITC_CPU`
            names, else the best that the CPU can run). `trace`: a file to which every choice
            between variants of a contraction is appended, one JSON object per line (default: what
            `PITC_TRACE` names). `variant`: the one to run wherever it is offered. `huge_pages`: `0`
            leaves weights in the mapped file, which processes share, `1` copies them to huge pages
            (default: where there are any). `threads`: for how many threads work is cut (default: as
            many as ONNX Runtime's pool is seen to have). `task_trace`: a file to which every run of
            a node is appended, with what each of its tasks took.

    Raises:
        UsageError: An unknown provider option.
        MachineError: See `register_ep`; or PIT nodes inside a branch, and ONNX Runtime 1.23.
        ArtifactError: The kernels beside the model are not those that it was compiled with.
    """
    import onnxruntime

    given = dict(provider_options or {})
    if unknown := sorted(given.keys() - OPTIONS):
        raise UsageError(
            f"unknown provider option '{unknown[0]}'", hint=f"known: {', '.join(sorted(OPTIONS))}"
        )
    register_ep()
    options = sess_options if sess_options is not None else onnxruntime.SessionOptions()
    if _attached(options):
        for key in OPTIONS:
            options.add_session_config_entry(f"{_PREFIX}{key}", given.get(key, ""))
    else:
        options.add_provider_for_devices(_devices()[:1], given)
        options.add_session_config_entry(_ATTACHED, "cpu")
    return _session(model_path, options)


def make_cuda_session(
    model_path: str | os.PathLike[str],
    sess_options: "onnxruntime.SessionOptions | None" = None,
    provider_options: Mapping[str, str] | None = None,
    *,
    device: int = 0,
) -> "onnxruntime.InferenceSession":
    """Load a model that was compiled for NVIDIA GPUs into an ONNX Runtime session.

    PIT nodes run in pitc's provider for GPUs, masks are looked at in the one for CPUs, everything
    else runs in ONNX Runtime's CUDA provider where that is installed, else on the CPU.

    Args:
        model_path: The `model.cuda.onnx` of an artifact; its kernels lie beside it.
        sess_options: The caller's options. Providers are added to them unless this was done before.
        provider_options: Of pitc's provider for GPUs: `trace`, `variant`, `tf32`.
        device: Which GPU, in the order of `cuda_devices`.

    Raises:
        UsageError: There is no such GPU.
        MachineError: See `cuda_devices`; or the model was not compiled for that GPU, or no memory
            is left on it.
        ArtifactError: The kernels beside the model are not those that it was compiled with.
    """
    import onnxruntime

    devices = cuda_devices()
    if not 0 <= device < len(devices):
        raise UsageError(f"there is no GPU {device}", hint=f"GPUs: 0 to {len(devices) - 1}")
    options = sess_options if sess_options is not None else onnxruntime.SessionOptions()
    if not _attached(options):
        number = devices[device].ep_metadata.get("cuda_device", "0")
        if CUDA_PROVIDER in onnxruntime.get_available_providers():
            options.add_provider(CUDA_PROVIDER, {"device_id": number})
        options.add_provider_for_devices([devices[device]], dict(provider_options or {}))
        options.add_provider_for_devices(_devices()[:1], {})
        options.add_session_config_entry(_ATTACHED, number)
    return _session(model_path, options)


def device_of(session: "onnxruntime.InferenceSession") -> int | None:
    """The number of the CUDA device of a session that was made here; None: it runs on the CPU."""
    if CUDA_EP_NAME not in session.get_providers():
        return None
    return int(_attached(session.get_session_options()))


def _session(
    model_path: str | os.PathLike[str] | bytes, options: "onnxruntime.SessionOptions"
) -> "onnxruntime.InferenceSession":
    """A session of the providers in its options alone."""
    import onnxruntime

    place = "graph in memory" if isinstance(model_path, bytes) else str(model_path)
    # Without them no PIT node runs: a second try on the CPU provider would only hide why.
    try:
        return onnxruntime.InferenceSession(os.fspath(model_path), options, enable_fallback=0)
    except Exception as error:
        if _version() < NODES_IN_BODIES and any(text in str(error) for text in IN_BODIES):
            raise MachineError(
                "compiled nodes inside an If or Loop need onnxruntime 1.24 or newer, "
                f"got {onnxruntime.__version__}",
                path=place,
                hint="pip install 'onnxruntime>=1.24'",
            ) from error
        if said := OURS.search(str(error)):
            node, text, hint = said.groups()
            for begin, (kind, usual) in REFUSALS.items():
                if text.startswith(begin):
                    raise kind(text, path=place, node=node, hint=hint or usual) from error
        raise


def _version() -> tuple[int, ...]:
    """ONNX Runtime's version."""
    import onnxruntime

    return tuple(int(part) for part in onnxruntime.__version__.split("+")[0].split(".")[:3])


def _devices(name: str = EP_NAME) -> list["onnxruntime.OrtEpDevice"]:
    """A provider's devices; empty when the library is not registered."""
    import onnxruntime

    return [device for device in onnxruntime.get_ep_devices() if device.ep_name == name]


def _attached(options: "onnxruntime.SessionOptions") -> str:
    """For which device the provider is in the options already; empty: it is not."""
    try:
        return str(options.get_session_config_entry(_ATTACHED))
    except RuntimeError:  # no such entry
        return ""
