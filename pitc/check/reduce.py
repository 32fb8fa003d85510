"""Find the smallest part of a model that still fails: first new outputs, then new inputs.

A part is a run of nodes of the source model. Its outputs are values inside the model; the values
that it needs become inputs (small integers, such as shapes: constants) with what ONNX Runtime
computed for them on the failing inputs.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from pitc import api
from pitc.artifact.folder import check_file
from pitc.check.feeds import Case
from pitc.check.reference import contract_of, reference_session
from pitc.check.tokens import LiveTokens
from pitc.check.verify import Rules, compare
from pitc.errors import MachineError, ModelError, PitcError, UsageError
from pitc.importer.proto import reads
from pitc.session import plain_session, run_session

#: What a failure is: "" for none, `differs`, or the type of an exception that is a bug.
Kind = str
OK, DIFFERS = "", "differs"
Progress = Callable[[int, int], None]

#: Integers of at most this many elements (shapes, axes) stay constant where a part is cut.
CONSTANT_ELEMENTS = 64
#: Models above this many bytes keep their weights in a second file.
EXTERNAL_BYTES = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the model.

    Args:
        nodes: Indices of its nodes, ascending.
        outputs: Names of its outputs.
    """

    nodes: tuple[int, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reduced:
    """The smallest failing part that was found.

    Args:
        model: The part as a model.
        feeds: Inputs on which it fails.
        padding: The mask input, if it is still one.
        kind: How it fails: `differs`, or the type of an exception.
        nodes_before: Nodes of the source model.
        nodes: Nodes of the part.
        tries: Models that were compiled.
    """

    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]
    padding: str | None
    kind: Kind
    nodes_before: int
    nodes: int
    tries: int


def failure(
    model: Path,
    feeds: Mapping[str, np.ndarray],
    *,
    padding: str | None,
    target: str = "auto",
    tolerance: float | None = None,
) -> Kind:
    """Compile a model and compare it with ONNX Runtime on one set of inputs.

    Returns:
        `OK`, also when the model or its inputs are refused; `DIFFERS`; or the name of the exception
        type that the compiler raised.
    """
    try:
        expected = run_session(plain_session(model), feeds)
    except Exception:
        return OK  # not a model that ONNX Runtime runs, so nothing to compare with
    try:
        compiled = api.compile(model, target, padding, suggest=False)
        found = compiled.run(feeds)
        reference, _ = reference_session(model, contract_of(compiled))
        expected = run_session(reference, feeds)
    except PitcError:
        return OK
    except Exception as error:
        return type(error).__name__
    result = compare(
        lambda _: found,
        lambda _: expected,
        [Case("", {}, dict(feeds))],
        Rules(LiveTokens(model, padding), compiled.report.tokens, tolerance),
    )
    return OK if result.ok else DIFFERS


def reduce_model(
    source: Path,
    feeds: Mapping[str, np.ndarray],
    *,
    padding: str | None = None,
    target: str = "auto",
    tolerance: float | None = None,
    progress: Progress | None = None,
) -> Reduced | None:
    """Find a smallest failing part.

    Args:
        source: The source model.
        feeds: Inputs on which it fails.
        padding: The mask input that it is compiled with, if any.
        target: The target that it is compiled for.
        tolerance: See `pitc.check.verify.compare`.
        progress: Called with models compiled and nodes of the smallest failing part.

    Returns:
        The part; None when the model does not fail on these inputs.

    Raises:
        ModelError: The model cannot be read or run in parts.
    """
    trial = partial(failure, target=target, tolerance=tolerance)
    kind = trial(source, feeds, padding=padding)
    if kind == OK:
        return None
    with tempfile.TemporaryDirectory(prefix="pitc-") as scratch:
        search = _Search(source, feeds, Path(scratch), padding, kind, trial, progress)
        best = search.above([o.name for o in search.proto.graph.output])
        if not search.fails(best):  # the cut alone mends it; hand back the whole
            model, kept = search.proto, dict(feeds)
        else:
            best = search.cut_inputs(search.cut_outputs(best))
            model, kept = search.build(best)
        names = {i.name for i in model.graph.input}
        return Reduced(
            model,
            kept,
            padding if padding in names else None,
            kind,
            len(search.nodes),
            len(model.graph.node),
            search.tries,
        )


class _Search:
    """The model, its recorded values, and the tries made."""

    def __init__(
        self,
        source: Path,
        feeds: Mapping[str, np.ndarray],
        scratch: Path,
        padding: str | None,
        kind: Kind,
        trial: Callable[..., Kind],
        progress: Progress | None,
    ) -> None:
        api.import_model(source)  # it is checked
        self.proto = onnx.load(source)
        self.nodes = list(self.proto.graph.node)
        self.tries = 1  # the whole model
        self._scratch, self._padding = scratch, padding
        self._kind, self._trial, self._progress = kind, trial, progress
        self._weights = {t.name: t for t in self.proto.graph.initializer}
        self._sparse = {t.values.name: t for t in self.proto.graph.sparse_initializer}
        self._declared = _declared(self.proto)
        self._inputs = {v.name: v for v in self.proto.graph.input}
        self._needs = [list(dict.fromkeys(reads(node))) for node in self.nodes]
        self._maker = {o: i for i, node in enumerate(self.nodes) for o in node.output if o}
        self._values = dict(feeds) | self._record(feeds)

    def _record(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What ONNX Runtime computes for every value of the source model."""
        exposed = onnx.ModelProto()
        exposed.CopyFrom(self.proto)
        del exposed.graph.output[:]
        exposed.graph.output.extend(onnx.ValueInfoProto(name=name) for name in self._maker)
        path = self._scratch / "values.onnx"
        _save(exposed, path)
        try:
            session = plain_session(path)
            names = [o.name for o in session.get_outputs()]
            found = session.run(names, dict(feeds))
        except Exception as error:
            raise ModelError(f"its inner values cannot be shown: {error}") from error
        finally:
            _remove(path)
        pairs = zip(names, found, strict=True)
        return {n: x for n, x in pairs if isinstance(x, np.ndarray) and x.dtype.kind in "biuf"}

    # --- parts ---

    def above(self, outputs: Sequence[str], within: Sequence[int] | None = None) -> Part:
        """The nodes that outputs need, of those that are allowed."""
        allowed = set(range(len(self.nodes)) if within is None else within)
        todo, kept = list(outputs), set[int]()
        while todo:
            maker = self._maker.get(todo.pop())
            if maker is None or maker in kept or maker not in allowed:
                continue
            kept.add(maker)
            todo += self._needs[maker]
        return Part(tuple(sorted(kept)), tuple(outputs))

    def build(self, part: Part) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
        """A part as a model, and its inputs.

        Raises:
            KeyError: An input or output of it is not a tensor of numbers.
        """
        graph = onnx.GraphProto(name=self.proto.graph.name or "part")
        graph.node.extend(self.nodes[i] for i in part.nodes)
        feeds: dict[str, np.ndarray] = {}
        made = {o for i in part.nodes for o in self.nodes[i].output}
        read = dict.fromkeys(name for i in part.nodes for name in self._needs[i])
        for name in (n for n in read if n not in made):
            if name in self._weights:
                graph.initializer.append(self._weights[name])
            elif name in self._sparse:
                graph.sparse_initializer.append(self._sparse[name])
            elif name not in self._inputs and _is_shape(self._values[name]):
                graph.initializer.append(numpy_helper.from_array(self._values[name], name))
            else:
                graph.input.append(self._info(name))
                feeds[name] = self._values[name]
        graph.output.extend(self._info(name) for name in part.outputs)
        model = onnx.ModelProto()
        model.CopyFrom(onnx.ModelProto(ir_version=self.proto.ir_version))
        model.opset_import.extend(self.proto.opset_import)
        model.functions.extend(self.proto.functions)
        model.graph.CopyFrom(graph)
        return model, feeds

    def _info(self, name: str) -> onnx.ValueInfoProto:
        """Type and shape of a value: as declared or inferred, else as recorded."""
        known = self._declared.get(name)
        if known is not None and known.type.tensor_type.HasField("shape"):
            return known
        value = self._values[name]
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        return helper.make_tensor_value_info(name, kind, list(value.shape))

    # --- tries ---

    def fails(self, part: Part) -> bool:
        """Whether a part fails as the whole model does."""
        try:
            model, feeds = self.build(part)
        except KeyError:
            return False
        names = {i.name for i in model.graph.input}
        path = self._scratch / f"try{self.tries}.onnx"
        _save(model, path)
        self.tries += 1
        try:
            padding = self._padding if self._padding in names else None
            kind = self._trial(path, feeds, padding=padding)
        finally:
            _remove(path)
        if self._progress and kind == self._kind:
            self._progress(self.tries, len(part.nodes))
        return kind == self._kind

    def cut_outputs(self, part: Part) -> Part:
        """Move the output towards the inputs: bisect over the values in order, as long as it helps.

        Of a part with several outputs that fails with one of them, only that one is kept.
        """
        for name in part.outputs if len(part.outputs) > 1 else ():
            single = self.above([name])
            if self.fails(single):
                part = single
                break
        while True:
            values = [o for i in part.nodes for o in self.nodes[i].output if o in self._values]
            low, high, best = -1, len(values), part
            while high - low > 1:
                middle = (low + high) // 2
                inner = self.above([values[middle]])
                if len(inner.nodes) < len(best.nodes) and self.fails(inner):
                    high, best = middle, inner
                else:
                    low = middle
            if best is part:
                return part
            part = best

    def cut_inputs(self, part: Part) -> Part:
        """Drop nodes at the start, bisecting; then one by one whatever is not needed."""
        low, high = 0, len(part.nodes)
        while high - low > 1:
            middle = (low + high) // 2
            if self.fails(self.above(part.outputs, part.nodes[middle:])):
                low = middle
            else:
                high = middle
        part = self.above(part.outputs, part.nodes[low:])
        for node in part.nodes:
            if node not in part.nodes:
                continue  # it went with another
            smaller = self.above(part.outputs, [n for n in part.nodes if n != node])
            if smaller.nodes and self.fails(smaller):
                part = smaller
        return part


# --- models and files ----------------------------------------------------------------------------


def _declared(proto: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    """Types and shapes of values, by name."""
    light = onnx.ModelProto()
    light.CopyFrom(proto)
    try:
        inferred = onnx.shape_inference.infer_shapes(light, data_prop=True)
    except (
        Exception
    ):  # over 2 GB, or a node that it does not understand: what is declared is enough
        inferred = light
    graph = inferred.graph
    return {v.name: v for v in (*graph.value_info, *graph.input, *graph.output)}


def _is_shape(value: np.ndarray) -> bool:
    return value.dtype.kind in "iu" and value.ndim <= 1 and value.size <= CONSTANT_ELEMENTS


def _save(model: onnx.ModelProto, path: Path) -> None:
    big = sum(len(t.raw_data) for t in model.graph.initializer) > EXTERNAL_BYTES
    copy = model
    if big:  # saving moves the weights out of the model, which is still needed
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
    onnx.save(copy, path, save_as_external_data=big, location=f"{path.name}.bin")


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_name(f"{path.name}.bin").unlink(missing_ok=True)


def check_output(path: Path) -> None:
    """Refuse a place where the reduced model cannot be written, before any work is done.

    Raises:
        UsageError: The name does not end in .onnx, something is there, or there is no such folder.
    """
    check_file(path, (".onnx",), "reduced model")
    for file in (path, path.with_suffix(".npz")):
        if file.exists():
            raise UsageError("exists already", path=file)


def write_reduced(path: Path, reduced: Reduced) -> Path:
    """Write the reduced model, and its inputs to a .npz file beside it.

    Returns:
        The file of inputs.

    Raises:
        MachineError: They cannot be written; nothing is left behind then.
    """
    inputs = path.with_suffix(".npz")
    feeds: dict[str, Any] = dict(reduced.feeds)
    try:
        _save(reduced.model, path)
        np.savez(inputs, allow_pickle=False, **feeds)
    except OSError as error:
        _remove(path)
        inputs.unlink(missing_ok=True)
        text = f"cannot be written: {error.strerror or error}"
        raise MachineError(text, path=path) from error
    return inputs
