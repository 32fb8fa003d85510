"""Facts of models of old operator sets are looked up in a newer one, where that is the same."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from pitc.check.verify import audit_facts
from pitc.errors import UsageError
from pitc.importer import load_model
from pitc.passes.audit.versions import raise_version
from tests.guard_worlds import session

# operators with an older version, in that of operator set 7 and 8
SAME = (
    "r = MatMul (x, w)",
    "r = Gemm (x, w, b)",
    "r = BatchNormalization (x, b, b, b, b)",
    "r = BatchNormalization <spatial = 1> (x, b, b, b, b)",
    "f = Flatten (x) r = PRelu (f, b)",
    "l = Less (x, b) c = Cast <to = 1> (l) r = Add (x, c)",
    "q = Max (x, w) n = Sum (q, q, x) r = Relu (n)",
    "u = Unsqueeze <axes = [0]> (x) p = MaxPool <kernel_shape = [1]> (u) r = Squeeze (p)",
    "r = Softmax (x)",
)
OTHERS = {  # Scan was new in operator set 8
    "u = Unsqueeze <axes = [0]> (x) s = Upsample <scales = [1., 1., 1.]> (u) r = Squeeze (s)": (
        "Upsample"
    ),
    "r = BatchNormalization <spatial = 0> (x, b, b, b, b)": "BatchNormalization",
    """r = Scan <num_scan_inputs = 1, body = body (float[3] e) => (float[3] o) { o = Neg (e) }>
        (, x)""": "Scan",
}


def old(body: str, version: int) -> onnx.ModelProto:
    """Rows of x that count where m is not 0."""
    text = f"""<ir_version: 8, opset_import: ["": {version}]>
        g (float[3, 3] x, float[3, 1] m) => (float[3, 3] y)
        <float[3, 3] w = {{1,2,3,4,5,6,7,8,9}}, float[3] b = {{1,2,3}}>
        {{ {body} y = Mul (r, m) }}"""
    return onnx.parser.parse_model(text)


@pytest.mark.parametrize("version", [7, 8])
@pytest.mark.parametrize("body", SAME)
def test_what_stays_the_same_is_audited(body: str, version: int) -> None:
    proto = old(body, version)
    x = np.array([[1, -2, 3], [np.inf, 2, -1], [0, 0, 5]], np.float32)
    feed = {"x": x, "m": np.array([[1], [0], [1]], np.float32)}
    found = audit_facts(load_model(proto), None, [{**feed, "x": np.nan_to_num(x, posinf=7)}])
    assert not found.failures and found.feeds == 1 and found.dead_checks
    newer = load_model(proto)
    raise_version(newer, 9)
    assert newer.opset_imports[""] == 9
    one, other = (np.asarray(session(p).run(None, feed)) for p in (proto, ir.to_proto(newer)))
    assert np.array_equal(one, other, equal_nan=True)


CASES = [(body, v) for body, name in OTHERS.items() for v in (7, 8) if (name, v) != ("Scan", 7)]


@pytest.mark.parametrize(("body", "version"), CASES)
def test_what_does_not_is_refused_by_name(body: str, version: int) -> None:
    model = ir.from_proto(old(body, version))
    with pytest.raises(UsageError, match=f"changed {OTHERS[body]} of operator set {version}"):
        raise_version(model, 9)
    assert model.opset_imports[""] == version


def test_a_newer_operator_set_stays() -> None:
    model = ir.from_proto(old("r = Softmax (x)", 13))
    raise_version(model, 9)
    assert model.opset_imports[""] == 13
