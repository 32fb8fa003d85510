"""ONNX Runtime sessions: made from a graph, run by names, with its errors as one line of ours."""

import logging
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from pitc.errors import ModelError, PitcError, UsageError
from pitc.ir.custom_ops import add_custom_ops
from pitc.runtime.binding import run_bound, take
from pitc.runtime.dlpack import BFLOAT16, DTYPES, LACKING, Tensor

#: What ONNX Runtime puts around the sentence that says what is wrong.
_NOISE = re.compile(
    r"\[ONNXRuntimeError\] : \d+ : \w+ : |Load model from .*? failed: ?"
    r"|Exception during initialization: |Non-zero status code returned while running .*?: "
    r"|/\S+\.(?:cc|h|hpp):\d+ [^\n]*?\) |Fatal error: |Type Error: |Error in execution: "
    r"|This is an invalid model\. (?:Error: )?",
    re.DOTALL,
)
_STATUS = re.compile(r"Status Message: (.*)", re.DOTALL)
_OURS = re.compile(r"pitc: node '(.*?)' \((\w+)\): (.*)", re.DOTALL)
_NODE = re.compile(
    r"Name:'(.*?)'|Node \((.*?)\)|node \((.*?)\)|In Node, \(\"(.*?)\"|node with name '(.*?)'",
    re.DOTALL,
)

#: NumPy's types of tensors, by ONNX Runtime's names.
_log = logging.getLogger("pitc.session")
_NUMPY = {kind: np.dtype(name) for kind, name in DTYPES.items() if name not in LACKING}
_NONE = np.dtype("V1")

#: Ours, its arena's, and those of the C++ library.
_NO_MEMORY = re.compile(r"\): out of memory$|Failed to allocate memory|std::bad_alloc")

#: What ONNX Runtime says of session options that do not fit, the option, why, and what to do.
_AT_FAULT = (
    (
        re.compile("fallback to (?:the )?CPU EP"),
        "session.disable_cpu_ep_fallback",
        "ordinary nodes of a compiled model run in the CPU provider",
        "leave the option out",
    ),
    (
        re.compile("serialize model as it contains compiled nodes"),
        "optimized_model_filepath",
        "ONNX Runtime cannot save a graph with compiled nodes",
        "leave the option out; model.onnx in the artifact is the graph that runs",
    ),
)
#: What it says of operators that it does not know.
_UNKNOWN_OPERATOR = re.compile(
    r"not a registered function/op|No opset import for domain|No Op registered|"
    r"Could not find an implementation|No schema registered|is not a registered"
)


def from_onnxruntime(error: BaseException) -> bool:
    """Whether ONNX Runtime raised it; its classes are not public."""
    return type(error).__module__.partition(".")[0] == "onnxruntime"


def told(error: Exception) -> tuple[str, str | None]:
    """What ONNX Runtime says is wrong, and the node that it names, if any."""
    text = str(error)
    status = _STATUS.search(text)
    ours = _OURS.search(text)
    if ours:
        return f"{ours[2]}: {ours[3]}", ours[1]
    named = _NODE.search(text)
    node = next((name for name in named.groups() if name), None) if named else None
    return _NOISE.sub("", status[1] if status else text).strip(), node


def option_at_fault(error: BaseException) -> UsageError | None:
    """The error of a session option that is why ONNX Runtime makes no session, if one is."""
    for text, option, why, hint in _AT_FAULT:
        if text.search(str(error)):
            return UsageError(f"session option {option!r}: {why}", hint=hint)
    return None


def lacks_operator(error: BaseException) -> bool:
    """Whether ONNX Runtime makes no session because it does not know an operator."""
    return bool(_UNKNOWN_OPERATOR.search(str(error)))


def quiet_options(*, lasting: bool = True) -> Any:
    """Session options without log lines: what goes wrong is raised.

    Args:
        lasting: False for a session that is only made to see whether it can be.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if not lasting:
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.intra_op_num_threads = options.inter_op_num_threads = 1
    return add_custom_ops(options)


def plain_session(graph: str | os.PathLike[str] | bytes, sess_options: Any = None) -> Any:
    """A session of ONNX Runtime's own CPU kernels; the graph has no PIT node.

    Args:
        graph: A file, or the bytes of a model.
        sess_options: An `onnxruntime.SessionOptions`; None for the defaults without log lines.

    Raises:
        ModelError: ONNX Runtime cannot load it.
        UsageError: A session option does not fit.
    """
    import onnxruntime

    options = sess_options if sess_options is not None else quiet_options()
    _log.debug("ONNX Runtime loads %s", "a graph in memory" if isinstance(graph, bytes) else graph)
    try:
        return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        if not from_onnxruntime(error):
            raise
        if _NO_MEMORY.search(str(error)):
            raise MemoryError from error
        if wrong := option_at_fault(error):
            raise wrong from error
        text, node = told(error)
        path = None if isinstance(graph, bytes) else graph
        raise ModelError(f"ONNX Runtime cannot load it: {text}", path=path, node=node) from error


def run_session(
    session: Any,
    inputs: Mapping[str, Any] | Iterable[Any],
    outputs: Iterable[str] | None = None,
    *,
    on_device: bool = False,
) -> dict[str, Any]:
    """Run a session by names.

    Args:
        session: An `onnxruntime.InferenceSession`.
        inputs: What `CompiledModel.run` takes.
        outputs: Names of the outputs to compute; None, or no name, for all.
        on_device: Leave outputs on the session's device.

    Returns:
        By output name, arrays or, if `on_device`, values of ONNX Runtime; sequences are lists.

    Raises:
        UsageError: The inputs or outputs do not fit the model, or it fails on them.
        MachineError: The device that holds an input is lost.
        MemoryError: There is no memory for them.
    """
    kinds = {o.name: o.type for o in session.get_outputs()}
    wanted = [] if outputs is None else listed("names of outputs", outputs)
    _check_names("output", wanted, kinds)
    feeds = fitted(session, inputs)
    wanted = wanted or list(kinds)
    bound = on_device or Tensor in map(type, feeds.values())
    with failures(session, feeds):
        if bound or BFLOAT16 in map(kinds.get, wanted):
            chosen = {name: kinds[name] for name in wanted}
            return run_bound(session, chosen, feeds, on_device=on_device)
        return dict(zip(wanted, session.run(wanted, feeds), strict=True))


def input_specs(session: Any) -> dict[str, Any]:
    """What ONNX Runtime says of each input, and of each initializer that is one too: a caller may
    give those or leave them out.
    """
    more = session.get_overridable_initializers()
    return {i.name: i for i in (*session.get_inputs(), *more)}


def fitted(
    session: Any, inputs: Mapping[str, Any] | Iterable[Any], held: Collection[str] = ()
) -> dict[str, Any]:
    """Inputs of a run by name, each of the declared type and rank.

    Args:
        session: An `onnxruntime.InferenceSession`.
        inputs: What `CompiledModel.run` takes.
        held: Inputs that need not be among them.

    Raises:
        UsageError: They do not fit the model.
    """
    known, needed = input_specs(session), [i.name for i in session.get_inputs()]
    needed = [name for name in needed if name not in held]
    # ONNX Runtime takes their shapes from their numbers
    ranked = {i.name for i in session.get_overridable_initializers()}
    given = _by_name(inputs, needed)
    _check_names("input", given, known)
    if missing := [name for name in needed if name not in given]:
        raise UsageError(f"inputs are missing: {', '.join(missing)}")
    return {n: fit(n, x, known[n], session, ranked=n in ranked) for n, x in given.items()}


def _check_names(what: str, given: Iterable[str], known: Mapping[str, Any]) -> None:
    for name in given:
        if name not in known:
            text = f"{what} {name!r} is not of the model"
            raise UsageError(text, hint=f"it has {', '.join(known)}")


@contextmanager
def failures(session: Any, feeds: Mapping[str, Any]) -> Iterator[None]:
    """Tell what goes wrong in a run as an error of ours.

    Args:
        session: The session that runs.
        feeds: What `fitted` gives of the inputs.

    Raises:
        UsageError: The model fails on them.
        MemoryError: There is no memory for them.
    """
    try:
        yield
    except PitcError:
        raise
    except Exception as error:
        # of bindings, ONNX Runtime's errors have no class of their own
        if not from_onnxruntime(error) and type(error) is not RuntimeError:
            raise
        text, node = told(error)
        text = f"the model fails on these inputs: {text}"
        if _NO_MEMORY.search(str(error)):
            raise MemoryError(f"node {node!r}: {text}" if node else text) from error
        if clash := _clash(input_specs(session), feeds):
            place = f"node {node!r}: " if node else ""
            raise UsageError(f"inputs disagree: {clash}", hint=f"{place}{text}") from error
        raise UsageError(text, node=node) from error


def arrays(outputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Outputs as arrays only: `name[i]` for each element of a sequence, `name[key]` of a map."""
    found: dict[str, np.ndarray] = {}
    for name, value in outputs.items():
        if isinstance(value, Mapping):
            found |= arrays({f"{name}[{key}]": item for key, item in value.items()})
        elif isinstance(value, list):
            found |= arrays({f"{name}[{i}]": item for i, item in enumerate(value)})
        elif value is not None:  # an empty optional
            found[name] = np.asarray(value)
    return found


def listed(what: str, given: Iterable[Any]) -> list[Any]:
    """What a caller gives as a sequence, which may be any iterable: gone through once, here.

    Raises:
        UsageError: It is one text, or one value.
    """
    if not is_several(given):
        raise UsageError(f"expected {what}, several or one in a list; got {given!r}")
    return list(given)


def is_several(given: object) -> bool:
    """True for what holds values one after the other, and is no text and no array itself."""
    one = hasattr(given, "__array__") or hasattr(given, "__dlpack__")
    one = one or isinstance(given, str | bytes | Mapping)
    return isinstance(given, Iterable) and not one


def _by_name(inputs: Mapping[str, Any] | Iterable[Any], names: Sequence[str]) -> Mapping[str, Any]:
    """Inputs under their names; a list or another iterable has one for each, in order.

    Raises:
        UsageError: It has more or fewer, or it is neither.
    """
    if isinstance(inputs, Mapping):
        return inputs
    got = type(inputs).__name__
    if is_several(inputs):
        values = list(inputs)
        if len(values) == len(names):
            return dict(zip(names, values, strict=True))
        got += f" of {len(values)}"
    each = ", ".join(map(repr, names))
    text = f"expected inputs by name, or a list of {len(names)} in the order {each}; got {got}"
    raise UsageError(text)


def fit(name: str, value: Any, spec: Any, session: Any, *, ranked: bool = False) -> Any:
    """An input of the declared type and rank: an array, or a tensor where NumPy cannot hold it.

    A sequence becomes a list; optionals and maps stay as they are. A number gets the type of an
    input that is one float.

    Args:
        name: The input.
        value: What is given for it.
        spec: What ONNX Runtime says of it.
        session: The session that is to read it.
        ranked: Its rank is known; else an empty shape may mean that it is not.

    Raises:
        UsageError: It has another type or shape, or the session cannot read it.
    """
    if spec.type.startswith("seq("):
        return listed(f"a sequence for input {name!r}", value)
    if not spec.type.startswith("tensor("):
        return value
    dtype = _NUMPY.get(spec.type, _NONE)
    if not spec.shape and dtype.kind == "f" and _is_number(value):
        value = np.asarray(value, dtype)
    if isinstance(value, np.ndarray) and value.dtype == dtype:
        array: np.ndarray | Tensor = value
    else:
        try:
            array = take(value, session)
        except UsageError as error:
            raise UsageError(f"input {name!r}: {error.message}", hint=error.hint) from error
        declared = DTYPES.get(spec.type)
        if declared is not None and array.dtype != declared:
            raise UsageError(f"input {name!r}: expected {declared}, got {array.dtype}")
    if spec.shape or ranked:
        fits = len(spec.shape) == len(array.shape) and all(
            not isinstance(d, int) or d == n for d, n in zip(spec.shape, array.shape, strict=True)
        )
        if not fits:
            raise UsageError(
                f"input {name!r}: expected shape {spec.shape}, got {list(array.shape)}"
            )
    return array


def _is_number(value: Any) -> bool:
    """True for a Python number and for one float of NumPy."""
    if isinstance(value, np.ndarray | np.generic):
        return value.shape == () and value.dtype.kind == "f"
    return isinstance(value, int | float) and not isinstance(value, bool)


def _clash(known: Mapping[str, Any], feeds: Mapping[str, Any]) -> str | None:
    """Inputs that give one named size several numbers: the likely reason of a failed run."""
    sizes: dict[str, dict[int, str]] = defaultdict(dict)
    for name, array in feeds.items():
        if isinstance(array, np.ndarray | Tensor) and known[name].shape:
            for dim, size in zip(known[name].shape, array.shape, strict=True):
                if isinstance(dim, str):
                    sizes[dim].setdefault(size, name)
    for dim, found in sizes.items():
        if len(found) > 1:
            each = " and ".join(f"{size} in {name!r}" for size, name in found.items())
            return f"{dim!r} is {each}: one name, one size"
    return None
