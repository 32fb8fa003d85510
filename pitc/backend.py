"""pitc in the form of `onnx.backend.base.Backend`, for programs and tests written against that.

    from pitc import backend

    rep = backend.prepare(onnx.load("model.onnx"), padding="attention_mask")
    outputs = rep.run([ids, mask, types])

Models are compiled in memory and run by ONNX Runtime on the CPU.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

import pitc
from pitc.errors import ModelError, UsageError
from pitc.session import is_several, listed, plain_session, quiet_options, run_session

#: Options of `prepare` that go to `pitc.compile`; `sess_options` goes to ONNX Runtime.
OPTIONS = ("padding", "target")


class PitcBackendRep(BackendRep):
    """A compiled model, ready to run any number of times, by many threads at once.

    Attributes:
        model: The compiled model, with its report.
        inputs: Names of the inputs, in the order of `run`.
        outputs: Names of the outputs.
    """

    def __init__(self, model: pitc.CompiledModel, sess_options: Any = None) -> None:
        self.model = model
        self._session = model.session(sess_options)
        self.inputs: tuple[str, ...] = tuple(i.name for i in self._session.get_inputs())
        self.outputs: tuple[str, ...] = tuple(o.name for o in self._session.get_outputs())
        self._result = namedtupledict("Outputs", self.outputs)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model.

        Args:
            inputs: Arrays by input name; or a list (any iterable) of them in the order of the
                graph's inputs; or the array of a model with one input.
            kwargs: None are known.

        Returns:
            The outputs, a named tuple that also takes names: `result["logits"]`.

        Raises:
            UsageError: The inputs do not fit the model, or it fails on them.
        """
        _refuse(kwargs)
        text = f"the model has {', '.join(self.inputs) or 'none'}"
        results = run_session(self._session, _by_name(inputs, self.inputs, text))
        outputs: tuple[Any, ...] = self._result(*results.values())
        return outputs


class PitcBackend(Backend):
    """Prepares and runs models and single nodes."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """True for `CPU` and `CPU:0`."""
        return device in ("CPU", "CPU:0")

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether pitc reads the model and the installed ONNX Runtime can load it."""
        from pitc.importer import load_model

        if not cls.supports_device(device):
            return False
        try:
            load_model(model)
            plain_session(model.SerializeToString(), quiet_options(lasting=False))
        except ModelError:
            return False
        return True

    @classmethod
    def prepare(
        cls, model: onnx.ModelProto | str | Path, device: str = "CPU", **kwargs: Any
    ) -> PitcBackendRep:
        """Compile a model and make a session for it.

        Args:
            model: A model in memory, or the path of one.
            device: `CPU`.
            kwargs: `padding` and `target` as in `pitc.compile`; `sess_options`, an
                `onnxruntime.SessionOptions`.

        Returns:
            The handle to run it with.

        Raises:
            UsageError: The device or an option cannot be used.
            ModelError: The model is not valid ONNX, or ONNX Runtime cannot load it.
        """
        if not cls.supports_device(device):
            raise UsageError(f"device {device!r} is not supported", hint="pitc runs on CPU")
        sess_options = kwargs.pop("sess_options", None)
        _refuse({name: value for name, value in kwargs.items() if name not in OPTIONS})
        return PitcBackendRep(pitc.compile(model, **kwargs), sess_options)

    @classmethod
    def run_model(
        cls,
        model: onnx.ModelProto | str | Path,
        inputs: Any,
        device: str = "CPU",
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Prepare a model and run it once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Iterable[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one node as a model of its own.

        Args:
            node: The node.
            inputs: Arrays (lists of arrays for sequences) for the inputs that the node names, in
                order; or by name, with what its bodies read; or one array.
            device: `CPU`.
            outputs_info: Type and shape of each output; inferred when None.
            kwargs: `opset_version`; without it, the newest definition of the operator. Others as in
                `prepare`.

        Returns:
            The outputs that the node names.

        Raises:
            UsageError: The inputs or options do not fit, or the type of an output is not known.
            ModelError: The node is not valid ONNX, or ONNX Runtime has no such operator.
        """
        names = [name for name in node.input if name]
        feeds = _by_name(inputs, names, f"the node reads {', '.join(names)}")
        if missing := sorted(set(names) - set(feeds)):
            raise UsageError(f"inputs are missing: {', '.join(missing)}")
        infos = None if outputs_info is None else listed("outputs_info", outputs_info)
        model = _node_model(node, feeds, infos, kwargs.pop("opset_version", None))
        return cls.run_model(model, feeds, device, **kwargs)


def _by_name(inputs: Any, names: Sequence[str], text: str) -> dict[str, Any]:
    """Inputs under their names; others have one for each, in order, or are the only one.

    Args:
        inputs: The inputs.
        names: Their names.
        text: What is said of these where there are more or fewer inputs.
    """
    if isinstance(inputs, Mapping):
        return dict(inputs)
    values = list(inputs) if is_several(inputs) else [inputs]
    if len(values) != len(names):
        raise UsageError(f"{len(values)} inputs given, {text}")
    return dict(zip(names, values, strict=True))


def _node_model(
    node: onnx.NodeProto,
    feeds: Mapping[str, Any],
    outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None,
    opset: int | None,
) -> onnx.ModelProto:
    """A model of one node whose inputs have the types and shapes of the feeds."""
    names = [name for name in node.output if name]
    if node.domain == "ai.onnx":  # the long name of the standard's domain
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.domain = ""
        node = copy
    if outputs_info is None:
        outputs = [helper.make_empty_tensor_value_info(name) for name in names]
    elif len(outputs_info) == len(names):
        outputs = [
            helper.make_value_info(name, _tensor_type(np.dtype(dtype), shape))
            for name, (dtype, shape) in zip(names, outputs_info, strict=True)
        ]
    else:
        raise UsageError(f"{len(outputs_info)} outputs described, the node has {', '.join(names)}")
    inputs = [helper.make_value_info(name, _type_of(value)) for name, value in feeds.items()]
    graph = helper.make_graph([node], node.op_type or "node", inputs, outputs)
    needed = _versions(graph) | ({} if opset is None else {"": opset})
    opsets = [helper.make_opsetid(domain, version) for domain, version in needed.items()]
    model = helper.make_model(
        graph, opset_imports=opsets, ir_version=helper.find_min_ir_version_for(opsets, True)
    )
    if outputs_info is None:
        try:
            model = onnx.shape_inference.infer_shapes(model)
        except onnx.shape_inference.InferenceError as error:
            raise ModelError(f"is not valid ONNX: {error}", node=node.name or None) from error
    for output in model.graph.output:
        if output.type.WhichOneof("value") is None:
            hint = "give outputs_info"
            raise UsageError(f"the type of output {output.name!r} is not known", hint=hint)
    return model


def _versions(graph: onnx.GraphProto) -> dict[str, int]:
    """Per domain, the oldest version that has the newest definitions of all operators used.

    Older versions run on more releases of ONNX Runtime than the newest one of the installed ONNX.
    """
    from pitc.importer.proto import nodes

    found: dict[str, int] = {}
    for node in nodes(onnx.ModelProto(graph=graph)):
        since = 1
        if onnx.defs.has(node.op_type, node.domain):
            since = onnx.defs.get_schema(node.op_type, node.domain).since_version
        found[node.domain] = max(found.get(node.domain, 1), since)
    return found


def _type_of(value: Any) -> onnx.TypeProto:
    """The ONNX type of an array, or of a list of arrays of one type and rank (a sequence)."""
    if not isinstance(value, list):
        return _tensor_type(np.asarray(value).dtype, np.shape(value))
    arrays = [np.asarray(item) for item in value]
    if len({(array.dtype, array.ndim) for array in arrays}) != 1:
        raise UsageError("the arrays of a sequence have no common type", hint="use run_model")
    return helper.make_sequence_type_proto(_tensor_type(arrays[0].dtype, (None,) * arrays[0].ndim))


def _tensor_type(dtype: np.dtype[Any], shape: Sequence[int | None]) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(dtype), shape)


def _refuse(options: Mapping[str, Any]) -> None:
    if options:
        known = ", ".join((*OPTIONS, "sess_options"))
        raise UsageError(f"unknown options {', '.join(options)}", hint=f"known: {known}")


prepare = PitcBackend.prepare
run_model = PitcBackend.run_model
run_node = PitcBackend.run_node
is_compatible = PitcBackend.is_compatible
supports_device = PitcBackend.supports_device
