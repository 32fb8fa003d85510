"""Float32 answers of ill-conditioned models, judged by how much ONNX Runtime itself rounds."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from pitc.check.double import in_double, run_in_double
from pitc.check.feeds import Case
from pitc.check.tolerance import FLOORS, SINGLE_CEILING, SINGLE_FACTOR, tolerance_of
from pitc.check.verify import Rules, compare
from pitc.session import plain_session, quiet_options, run_session
from tests.plugin.test_cli import Run

FIXTURES = Path(__file__).parents[2] / "models/export/fixtures"
Answer = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]


def parsed(body: str, head: str = "(float[n, 16] x) => (float[n, m] y)", weights: str = "") -> Any:
    text = (
        f'<ir_version: 9, opset_import: ["": 18, "com.microsoft": 1]> g {head} {weights} {{{body}}}'
    )
    return onnx.parser.parse_model(text)


def both(proto: onnx.ModelProto, feeds: dict[str, Any]) -> tuple[dict[str, Any], Mapping[str, Any]]:
    single = run_session(plain_session(proto.SerializeToString()), feeds)
    return single, run_in_double(ir.from_proto(proto), quiet_options)(feeds)


X = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
BODIES = {
    "plain": "y = Mul (x, x)",
    "constants": """c = Constant <value_float = 0.1> () k = Constant <value_floats = [0.1]> ()
        t = Constant <value = float[1] {0.3}> () a = Add (x, c) b = Mul (a, k) y = Sub (b, t)""",
    "casts": "i = Cast <to = 7> (x) f = Cast <to = 1> (i) y = Add (x, f)",
    "no kernel": "e = Erf (x) y = Mul (e, x)",
    "of a library": "e = com.microsoft.QuickGelu <alpha = 1.702> (x) y = Add (e, x)",
    "zeros": "s = Shape (x) z = ConstantOfShape (s) y = Add (x, z)",
    "branch": """k = Constant <value = bool {1}> ()
        y = If (k) <then_branch = a () => (float[n, 16] u) { u = Mul (x, x) },
        else_branch = b () => (float[n, 16] v) { v = Neg (x) }>""",
    "weights": "y = MatMul (x, x_t)",
}


@pytest.mark.parametrize("case", BODIES)
def test_a_model_in_double(case: str) -> None:
    """It computes the same, to float32, and its floats are float64."""
    proto = parsed(BODIES[case])
    proto.graph.initializer.append(onnx.numpy_helper.from_array(X.T.copy(), "x_t"))
    single, double = both(proto, {"x": X})
    assert double["y"].dtype == np.float64
    np.testing.assert_allclose(double["y"], single["y"], rtol=1e-5, atol=1e-6)


def test_a_double_rounds_less() -> None:
    proto = parsed("y = MatMul (x, x_t)")
    wide = X.astype(np.float64)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(X.T.copy(), "x_t"))
    _, double = both(proto, {"x": X})
    np.testing.assert_allclose(double["y"], wide @ wide.T, rtol=1e-14)


def test_the_model_itself_stays() -> None:
    model = ir.from_proto(parsed(BODIES["constants"]))
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    in_double(model, [])
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize(
    "name", ["bert-eager-traced", "bert-sdpa-dynamo", "t5-encoder-eager-dynamo"]
)
def test_exports_in_double(name: str) -> None:
    path = FIXTURES / f"{name}.onnx"
    proto = onnx.load(path)
    sizes = {"input_ids": np.ones((2, 5), np.int64), "attention_mask": np.ones((2, 5), np.int64)}
    feeds = {i.name: sizes.get(i.name, np.zeros((2, 5), np.int64)) for i in proto.graph.input}
    single, double = both(proto, feeds)
    for output, want in single.items():
        assert double[output].dtype == np.float64
        np.testing.assert_allclose(double[output], want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("yardstick", "allowed"),
    [
        (0.0, FLOORS["float32"]),
        (1e-6, FLOORS["float32"]),
        (1e-4, SINGLE_FACTOR * 1e-4),
        (0.4, SINGLE_CEILING),
        (float("inf"), FLOORS["float32"]),  # it says nothing
        (float("nan"), FLOORS["float32"]),
    ],
)
def test_the_yardstick_of_float32(yardstick: float, allowed: float) -> None:
    found = tolerance_of("float32", {"float32"}, yardstick, None)
    assert found.value == pytest.approx(allowed) and "or in float64" in found.why
    assert tolerance_of("float64", {"float64"}, yardstick, None).value == FLOORS["float64"]
    assert tolerance_of("float32", {"float32"}, yardstick, 1e-7).value == 1e-7


def times(*factors: float) -> Answer:
    """The factor of the case's number."""
    return lambda feeds: {"y": feeds["x"] * np.float32(factors[int(feeds["k"][0])])}


def cases_of(count: int) -> list[Case]:
    return [Case(f"case {k}", {}, {"x": X, "k": np.array([k])}) for k in range(count)]


def test_each_case_has_its_own_yardstick() -> None:
    """One that ONNX Runtime rounds badly excuses no other."""
    kinds = {"y": frozenset({"float32"})}
    asked: list[str] = []

    def other(name: str, answer: Answer) -> Callable[[], Answer]:
        return lambda: (asked.append(name), answer)[1]

    plain, double = times(1, 1, 1, 1), times(1.001, 1, 1, 1.001)
    rules = Rules(arithmetic=kinds, plain=other("plain", plain), double=other("double", double))
    fine = compare(times(1.000001, 1, 1, 1), times(1, 1, 1, 1), cases_of(4), rules)
    assert fine.ok and asked == [] and fine.outputs[0].yardstick is None
    excused = compare(times(1.003, 1, 1, 1), times(1, 1, 1, 1), cases_of(4), rules)
    assert excused.ok and asked == ["plain", "double"]
    assert excused.outputs[0].yardstick == pytest.approx(1e-3, rel=1e-2)
    assert excused.outputs[0].tolerance == pytest.approx(4e-3, rel=1e-2)
    wrong = compare(times(1.003, 1.003, 1, 1), times(1, 1, 1, 1), cases_of(4), rules)
    assert not wrong.ok and wrong.failed == ["case 1"]
    worse = compare(times(1.005, 1, 1, 1), times(1, 1, 1, 1), cases_of(4), rules)
    assert not worse.ok and worse.failed == ["case 0"]
    strict = replace(rules, tolerance=1e-4)
    given = compare(times(1.003, 1, 1, 1), times(1, 1, 1, 1), cases_of(1), strict)
    assert not given.ok


def test_elements_of_a_map_are_computed_as_the_map_is() -> None:
    def answer(factor: float) -> Callable[[Mapping[str, np.ndarray]], Any]:
        return lambda feeds: {"z": [{0: float(np.float32(0.5 * factor))}]}

    found = compare(
        answer(1.000001), answer(1), cases_of(1), Rules(arithmetic={"z": frozenset({"float32"})})
    )
    assert found.ok and found.outputs[0].output == "z[0][0]"
    assert found.outputs[0].tolerance == FLOORS["float32"]


def ill_conditioned(folder: Path) -> Path:
    """Norms of rows that are nearly constant: what they round is all that is left."""
    rng = np.random.default_rng(0)
    common = rng.standard_normal((1024, 1)).astype(np.float32)
    w = common + 1e-4 * rng.standard_normal((1024, 64)).astype(np.float32)
    proto = parsed(
        """h = Relu (x) f = MatMul (h, w) n = LayerNormalization <axis = -1> (f, one)
        u = Unsqueeze (mask, last) y = Mul (n, u)""",
        "(float[b, s, 1024] x, float[b, s] mask) => (float[b, s, 64] y)",
        "<int64[1] last = {2}>",
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(64, np.float32), "one"))
    path = folder / "m.onnx"
    onnx.save(proto, path)
    return path


def test_verify_of_an_ill_conditioned_model(run: Run, tmp_path: Path) -> None:
    path = ill_conditioned(tmp_path)
    code, out, _ = run("verify", path, "-q", "--json")
    (y,) = json.loads(out)["outputs"]
    assert y["norm"] > FLOORS["float32"], "the model is to be judged by more than the floor"
    assert code == 0 and y["ok"] and y["yardstick"] > FLOORS["float32"] / SINGLE_FACTOR
    assert y["tolerance"] <= SINGLE_CEILING and "or in float64" in y["why"]
    assert run("bench", path, "-q", "--rounds", "2", "--padding", "mask")[0] == 0
