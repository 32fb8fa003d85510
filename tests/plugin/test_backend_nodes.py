"""ONNX's own backend tests: what plain ONNX Runtime computes as ONNX expects, pitc computes, too.

The node tests, and the small models that ONNX ships as files. The number of them is printed at the
end of the run.
"""

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from pitc import api, backend
from pitc.errors import PitcError

CHUNKS = 8
RTOL, ATOL = 1e-5, 1e-6
IR_MAX, OPSET_MAX = 11, 26  # ONNX stamps its tests with versions that nobody runs yet
KINDS = ("simple", "pytorch-converted", "pytorch-operator")


@dataclass(frozen=True)
class Case:
    """One model with sets of inputs and expected outputs."""

    name: str
    model: onnx.ModelProto
    data: Sequence[tuple[list[Any], list[Any]]]
    rtol: float
    atol: float


@functools.cache
def cases() -> tuple[Case, ...]:
    """All cases, in order of their names."""
    state = np.random.get_state()
    np.random.seed(0)  # the cases draw from numpy's global generator
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [case for case in map(node_case, load_model_tests(kind="node")) if case]
    np.random.set_state(state)
    found += [file_case(test) for kind in KINDS for test in load_model_tests(kind=kind)]
    return tuple(sorted(found, key=lambda case: case.name))


def node_case(test: TestCase) -> Case | None:
    if test.model is None or test.data_sets is None:
        return None
    data = [([*map(value, i)], [*map(value, o)]) for i, o in test.data_sets]
    return Case(test.name, restamped(test.model), data, test.rtol, test.atol)


def file_case(test: TestCase) -> Case:
    folder = Path(str(test.model_dir))
    model = onnx.load(folder / "model.onnx")

    def read(part: Path, kind: str, infos: Sequence[onnx.ValueInfoProto]) -> list[Any]:
        return [
            parsed((part / f"{kind}_{k}.pb").read_bytes(), info.type)
            for k, info in enumerate(infos)
            if (part / f"{kind}_{k}.pb").exists()
        ]

    data = [
        (read(part, "input", model.graph.input), read(part, "output", model.graph.output))
        for part in sorted(folder.glob("test_data_set_*"))
    ]
    return Case(f"{test.name}_file", model, data, test.rtol, test.atol)


def parsed(content: bytes, kind: onnx.TypeProto) -> Any:
    if kind.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(content))
    if kind.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(content))
    return numpy_helper.to_array(onnx.TensorProto.FromString(content))


def value(item: Any) -> Any:
    """Scalars of numpy and ONNX tensors as arrays; sequences, maps and None as they are."""
    if isinstance(item, onnx.TensorProto):
        return numpy_helper.to_array(item)
    return np.asarray(item) if isinstance(item, np.generic) else item


def restamped(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with versions that ONNX Runtime loads, where it is valid in them."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for opset in copy.opset_import:
        if opset.domain == "":
            opset.version = min(opset.version, OPSET_MAX)
    copy.ir_version = min(copy.ir_version, IR_MAX)
    try:
        onnx.checker.check_model(copy)
    except onnx.checker.ValidationError:
        return model
    return copy


def options() -> onnxruntime.SessionOptions:
    made = onnxruntime.SessionOptions()
    made.intra_op_num_threads = made.inter_op_num_threads = 1
    made.log_severity_level = 4
    return made


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    content = model.SerializeToString()
    return onnxruntime.InferenceSession(content, options(), providers=["CPUExecutionProvider"])


def expected(case: Case) -> list[list[Any]] | None:
    """What plain ONNX Runtime computes; None when it cannot, or not what ONNX expects."""
    try:
        plain = session(case.model)
        names = [i.name for i in plain.get_inputs()]
        got = [list(plain.run(None, dict(zip(names, i, strict=False)))) for i, _ in case.data]
        for outputs, (_, wanted) in zip(got, case.data, strict=True):
            Runner.assert_similar_outputs(wanted, outputs, case.rtol, case.atol)
    except (AssertionError, AttributeError, TypeError):
        return None
    except Exception as error:
        if isinstance(error, RuntimeError) or type(error).__module__.startswith("onnxruntime"):
            return None
        raise
    return got


def same_bits(a: Any, b: Any) -> bool:
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same_bits, a, b))
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return type(a) is type(b) and bool(a == b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool((a == b).all()) if a.dtype == object else a.tobytes() == b.tobytes()


def close(got: Sequence[Any], want: Sequence[Any]) -> bool:
    if same_bits(list(got), list(want)):
        return True
    halves = any(getattr(x, "dtype", None) == np.float16 for x in want)
    rtol = float(np.finfo(np.float16).eps) if halves else RTOL  # one step: CPUs round it less often
    try:
        Runner.assert_similar_outputs(want, got, rtol, ATOL)
    except AssertionError:
        return False
    return True


@pytest.fixture
def rewritten(monkeypatch: pytest.MonkeyPatch) -> list[onnx.ModelProto]:
    """The graphs that the passes make; `compile` goes back to the source when it lowers nothing."""
    graphs: list[onnx.ModelProto] = []
    lower = api.lower

    def keep(*args: Any) -> Any:
        lowered = lower(*args)
        graphs.append(ir.to_proto(lowered.model))
        return lowered

    monkeypatch.setattr(api, "lower", keep)
    return graphs


def problems(case: Case, want: list[list[Any]], rewritten: list[onnx.ModelProto]) -> Iterator[str]:
    """What is wrong with the compiled model, and with the rewritten graph that it came from."""
    rep = backend.prepare(case.model, sess_options=options())
    agree: Callable[..., bool] = close if rep.model.manifest.pit_nodes else same_bits
    for k, (inputs, _) in enumerate(case.data):
        if not agree(list(rep.run(inputs)), want[k]):
            yield "compiled model: other outputs"
    if rep.model.manifest.pit_nodes:
        return  # the rewritten graph ran above
    plain = session(rewritten[-1])
    names = [i.name for i in plain.get_inputs()]
    for k, (inputs, _) in enumerate(case.data):
        if not close(plain.run(None, dict(zip(names, inputs, strict=True))), want[k]):
            yield "rewritten graph: other outputs"


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_what_onnx_runtime_passes_pitc_passes(
    chunk: int,
    rewritten: list[onnx.ModelProto],
    record_property: Callable[[str, object], None],
) -> None:
    passed = tried = 0
    wrong = []
    for case in cases()[chunk::CHUNKS]:
        want = expected(case)
        if want is None:
            continue
        tried += 1
        try:
            found = list(problems(case, want, rewritten))
        except PitcError as error:
            found = [str(error)]
        except Exception as error:  # the loop goes on: all failures are reported at once
            found = [f"{type(error).__name__}: {error}"]
        wrong += [f"{case.name}: {line[:300]}" for line in found]
        passed += not found
    record_property("count", ["ONNX backend tests: pitc == ONNX Runtime", passed, tried])
    assert not wrong, "\n".join(wrong)
    assert tried > 100  # most cases must not be left out as "ONNX Runtime cannot"


def test_a_wrong_answer_is_seen(rewritten: list[onnx.ModelProto]) -> None:
    case = next(case for case in cases() if case.name == "test_add")
    want = expected(case)
    assert want is not None and not list(problems(case, want, rewritten))
    slightly = [[np.nextafter(want[0][0], np.float32(9))]]
    assert list(problems(case, slightly, rewritten)) == ["compiled model: other outputs"]
    clearly = [[want[0][0] * np.float32(1.0001)]]
    assert len(list(problems(case, clearly, rewritten))) == 2
