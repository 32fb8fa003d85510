"""Both zeros, functions that are 0 somewhere, and functions that look like an activation."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from tests.probes.build import WIDE, D, Net, Probe, Table, normal, rng_of, tensor

ZEROS = Table("zeros")
BOTH = (0.0, -0.0, 1.0, -1.0, 0.5)
Array = Any
Law = Callable[[Net, str, str, str], str]


def _gated(
    law: Law, values: tuple[float, ...] = BOTH, opset: int = 17, dtype: Any = np.float32
) -> Probe:
    """law(g, gate [b, s, 1], x, mlp(z)), with a factor of x besides, so that zeros matter."""
    g = Net(opset)
    x, m = g.input("x", np.float32, ("b", "s", D)), g.input("gate", dtype, ("b", "s", 1))
    m = m if dtype == np.float32 else g.cast(m, np.float32)
    z = g.input("z", np.float32, ("b", "s", D))
    g.out(law(g, m, x, g.mlp(z)), g.Mul(x, m))
    feeds = [
        {
            "x": normal(2, 9, D, seed=n),
            "z": normal(2, 9, D, seed=n + 9),
            "gate": rng_of(n).choice(np.asarray(values, dtype), (2, 9, 1)),
        }
        for n in range(3)
    ]
    return Probe(g.model(), feeds)


def below(g: Net, test: str, x: str, y: str) -> str:
    """y where a number is less than 0, else x times 2."""
    return g.Where(g.Less(test, 0.0), y, g.Mul(x, 2.0))


def above(g: Net, test: str, x: str, y: str) -> str:
    """The other way round."""
    return g.Where(g.Greater(test, 0.0), g.Mul(x, 2.0), y)


LAWS: dict[str, Law] = {
    "reciprocal": lambda g, m, x, y: below(g, g.Reciprocal(m), x, y),
    "divide": lambda g, m, x, y: below(g, g.Div(1.0, m), x, y),
    "divide_minus": lambda g, m, x, y: above(g, g.Div(-1.0, m), x, y),
    "reciprocal_above": lambda g, m, x, y: above(g, g.Reciprocal(m), x, y),
    "infinite": lambda g, m, x, y: g.Where(
        g.Equal(g.Reciprocal(m), float("-inf")), y, g.Mul(x, 2.0)
    ),
    "is_inf": lambda g, m, x, y: g.Where(g.IsInf(g.Reciprocal(m), detect_positive=0), y, x),
    "is_plus_inf": lambda g, m, x, y: g.Where(g.IsInf(g.Reciprocal(m), detect_negative=0), x, y),
    "power": lambda g, m, x, y: below(g, g.Pow(m, -1.0), x, y),
    "power_odd": lambda g, m, x, y: below(g, g.Pow(m, -3.0), x, y),
    "power_even": lambda g, m, x, y: below(g, g.Pow(m, -2.0), x, y),
    "power_zero": lambda g, m, x, y: g.Mul(y, g.Pow(m, 0.0)),
    "power_of_zero": lambda g, m, x, y: g.Mul(y, g.Pow(0.0, m)),
    "power_half": lambda g, m, x, y: g.Mul(y, g.Pow(g.Abs(m), 0.5)),
    "zero_times": lambda g, m, x, y: below(g, g.Reciprocal(g.Mul(m, 0.0)), x, y),
    "minus_times": lambda g, m, x, y: below(g, g.Reciprocal(g.Mul(m, -1.0)), x, y),
    "product_sign": lambda g, m, x, y: below(g, g.Reciprocal(g.Mul(m, g.ReduceSum(x, [2]))), x, y),
    "neg": lambda g, m, x, y: below(g, g.Reciprocal(g.Neg(m)), x, y),
    "abs": lambda g, m, x, y: below(g, g.Reciprocal(g.Abs(m)), x, y),
    "sqrt": lambda g, m, x, y: below(g, g.Reciprocal(g.Sqrt(g.Mul(m, g.Abs(m)))), x, y),
    "relu": lambda g, m, x, y: below(g, g.Reciprocal(g.Relu(m)), x, y),
    "max": lambda g, m, x, y: below(g, g.Reciprocal(g.Max(m, -0.0)), x, y),
    "min": lambda g, m, x, y: below(g, g.Reciprocal(g.Min(m, 0.0)), x, y),
    "clip": lambda g, m, x, y: below(g, g.Reciprocal(g.Clip(m, 0.0, 1.0)), x, y),
    "ceil": lambda g, m, x, y: below(g, g.Reciprocal(g.Ceil(g.Mul(m, 0.5))), x, y),
    "floor": lambda g, m, x, y: below(g, g.Reciprocal(g.Floor(m)), x, y),
    "round": lambda g, m, x, y: below(g, g.Reciprocal(g.Round(g.Mul(m, 0.4))), x, y),
    "sign": lambda g, m, x, y: below(g, g.Reciprocal(g.Sign(m)), x, y),
    "add": lambda g, m, x, y: below(g, g.Reciprocal(g.Add(m, -0.0)), x, y),
    "add_plus": lambda g, m, x, y: below(g, g.Reciprocal(g.Add(m, 0.0)), x, y),
    "sub": lambda g, m, x, y: below(g, g.Reciprocal(g.Sub(-0.0, m)), x, y),
    "sub_self": lambda g, m, x, y: below(g, g.Reciprocal(g.Sub(m, m)), x, y),
    "cast": lambda g, m, x, y: below(
        g, g.Reciprocal(g.cast(g.cast(m, np.float16), np.float32)), x, y
    ),
    "cast_int": lambda g, m, x, y: below(
        g, g.Reciprocal(g.cast(g.cast(m, np.int32), np.float32)), x, y
    ),
    "cast_bool": lambda g, m, x, y: g.Where(g.cast(m, np.bool_), y, x),
    "not_bool": lambda g, m, x, y: g.Where(g.Not(g.cast(m, np.bool_)), x, y),
    "equal": lambda g, m, x, y: g.Where(g.Equal(m, 0.0), x, y),
    "equal_minus": lambda g, m, x, y: g.Where(g.Equal(m, -0.0), x, y),
    "less": lambda g, m, x, y: g.Where(g.Less(m, 0.0), x, y),
    "at_most": lambda g, m, x, y: g.Where(g.LessOrEqual(m, -0.0), x, y),
    "where": lambda g, m, x, y: below(g, g.Reciprocal(g.Where(g.Equal(m, 0.0), m, 1.0)), x, y),
    "concat": lambda g, m, x, y: below(
        g, g.Reciprocal(g.Slice(g.Concat(m, m, axis=2), [1], [2], [2])), x, y
    ),
    "pad": lambda g, m, x, y: below(
        g, g.Reciprocal(g.Slice(g.Pad(m, [0, 0, 1, 0, 0, 0], -0.0), [0], [1], [2])), x, y
    ),
    "constant_of_shape": lambda g, m, x, y: below(
        g,
        g.Reciprocal(
            g.Mul(m, g.ConstantOfShape(g.Shape(m), value=tensor(np.full(1, -0.0, np.float32))))
        ),
        x,
        y,
    ),
    "tanh": lambda g, m, x, y: below(g, g.Reciprocal(g.Tanh(m)), x, y),
    "erf": lambda g, m, x, y: below(g, g.Reciprocal(g.Erf(m)), x, y),
    "sin": lambda g, m, x, y: below(g, g.Reciprocal(g.Sin(m)), x, y),
    "leaky": lambda g, m, x, y: below(g, g.Reciprocal(g.LeakyRelu(m, alpha=0.1)), x, y),
    "elu": lambda g, m, x, y: below(g, g.Reciprocal(g.Elu(m)), x, y),
    "softsign": lambda g, m, x, y: below(g, g.Reciprocal(g.Softsign(m)), x, y),
    "atan": lambda g, m, x, y: below(g, g.Div(1.0, g.Atan(m)), x, y),
    "log": lambda g, m, x, y: below(g, g.Log(g.Abs(m)), x, y),
    "exp_minus_inf": lambda g, m, x, y: g.Mul(y, g.Exp(g.Neg(g.Reciprocal(g.Abs(m))))),
    "reduce_sum": lambda g, m, x, y: below(g, g.Reciprocal(g.ReduceSum(m, [2])), x, y),
    "reduce_max": lambda g, m, x, y: below(
        g, g.Reciprocal(g.ReduceMax(g.Concat(m, m, axis=2), axes=[2])), x, y
    ),
    "matmul": lambda g, m, x, y: below(g, g.Reciprocal(g.MatMul(m, g.const([[1.0]]))), x, y),
    "quotient_of_zeros": lambda g, m, x, y: g.Where(g.IsNaN(g.Div(m, m)), x, y),
    "zero_by": lambda g, m, x, y: g.Where(g.IsNaN(g.Div(0.0, m)), x, y),
    "zero_over_sign": lambda g, m, x, y: below(g, g.Reciprocal(g.Div(0.0, m)), x, y),
    "mod": lambda g, m, x, y: below(g, g.Reciprocal(g.Mod(m, 1.0, fmod=1)), x, y),
    "prelu": lambda g, m, x, y: below(g, g.Reciprocal(g.PRelu(m, g.const([-1.0]))), x, y),
    "identity_cast_double": lambda g, m, x, y: below(
        g, g.cast(g.Reciprocal(g.cast(m, np.float64)), np.float32), x, y
    ),
    "times_zero_gate": lambda g, m, x, y: g.Div(g.Mul(y, m), g.Add(g.Abs(m), 1.0)),
    "over_zero_gate": lambda g, m, x, y: g.Div(y, m),
    "zero_times_reciprocal": lambda g, m, x, y: g.Mul(g.Mul(y, m), g.Reciprocal(m)),
    "product_over": lambda g, m, x, y: g.Div(g.Mul(y, m), m),
    "reciprocal_of_product": lambda g, m, x, y: g.Reciprocal(g.Mul(y, m)),
    "sign_of_product": lambda g, m, x, y: g.Where(
        g.Less(g.Reciprocal(g.Mul(y, m)), 0.0), g.Mul(x, 2.0), 3.0
    ),
    "log_of_product": lambda g, m, x, y: g.Log(g.Abs(g.Mul(y, m))),
    "softmax_of_product": lambda g, m, x, y: g.Softmax(g.Mul(y, m), axis=-1),
    "norm_of_product": lambda g, m, x, y: g.LpNormalization(g.Mul(y, m), axis=-1),
    "l1_norm_of_product": lambda g, m, x, y: g.LpNormalization(g.Mul(y, m), axis=-1, p=1),
    "own_norm": lambda g, m, x, y: (lambda z: g.Div(z, g.ReduceL2(z, axes=[2])))(g.Mul(y, m)),
    "cosine_of_product": lambda g, m, x, y: g.Cos(g.Mul(y, m)),
    "one_plus": lambda g, m, x, y: g.Add(1.0, g.Mul(y, m)),
    "minus_zero_sum": lambda g, m, x, y: g.Reciprocal(g.Sub(g.Mul(y, m), 0.0)),
}
for _name, _law in LAWS.items():
    ZEROS.add(f"law.{_name}", lambda f=_law: _gated(f))
for _name in ("reciprocal", "divide", "zero_times", "is_inf", "max", "neg"):
    ZEROS.add(f"half.{_name}", lambda f=LAWS[_name]: _gated(f, dtype=np.float16))
    ZEROS.add(f"tiny.{_name}", lambda f=LAWS[_name]: _gated(f, (1e-40, -1e-40, 0.0, 1e-30)))
for _name in ("bitcast",):
    ZEROS.add(
        "bits.bitcast",
        lambda: _gated(
            lambda g, m, x, y: g.Where(
                g.Less(g.op("BitCast", m, to=onnx.TensorProto.INT32), g.const(0, np.int32)),
                y,
                g.Mul(x, 2.0),
            ),
            opset=26,
        ),
    )


def _act(
    function: Callable[[Net, str], str], scale: float = 1.0, opset: int = 20, masked: bool = False
) -> Probe:
    """A function between two products, behind padding or not; it must see large numbers."""
    g = Net(opset)
    x = g.input("x", np.float32, ("b", "s", D))
    h = g.linear(x, D, WIDE)
    y = g.linear(function(g, h), WIDE, D, 1)
    if masked:
        m = g.input("mask", np.float32, ("b", "s", 1))
        y = g.Mul(y, m)
    g.out(y)
    feeds = []
    for n, size in enumerate((1.0, 8.0, 40.0, 300.0)):
        feed = {"x": normal(2, 5, D, seed=n) * np.float32(size * scale)}
        if masked:
            feed["mask"] = (rng_of(n).random((2, 5, 1)) < 0.6).astype(np.float32)
        feeds.append(feed)
    return Probe(g.model(), feeds)


def _gelu(g: Net, x: str) -> str:
    return g.Mul(g.Mul(x, g.Add(g.Erf(g.Div(x, 1.41421356)), 1.0)), 0.5)


FUNCTIONS: dict[str, Callable[[Net, str], str]] = {
    "relu": lambda g, x: g.Relu(x),
    "clip_20": lambda g, x: g.Clip(x, 0.0, 20.0),
    "clip_12": lambda g, x: g.Clip(x, 0.0, 12.0),
    "clip_13": lambda g, x: g.Clip(x, 0.0, 13.0),
    "clip_6": lambda g, x: g.Clip(x, 0.0, 6.0),
    "clip_100": lambda g, x: g.Clip(x, 0.0, 100.0),
    "clip_low": lambda g, x: g.Clip(x, 0.0),
    "clip_minus": lambda g, x: g.Clip(x, -1e-7, 20.0),
    "clip_turned": lambda g, x: g.Clip(x, 2.0, 1.0),
    "min_relu": lambda g, x: g.Min(g.Relu(x), 20.0),
    "relu_min": lambda g, x: g.Relu(g.Min(x, 20.0)),
    "max_min": lambda g, x: g.Max(g.Min(x, 15.0), 0.0),
    "max_zero": lambda g, x: g.Max(x, 0.0),
    "max_minus_zero": lambda g, x: g.Max(x, -0.0),
    "max_tiny": lambda g, x: g.Max(x, 1e-6),
    "leaky_tiny": lambda g, x: g.LeakyRelu(x, alpha=1e-6),
    "leaky": lambda g, x: g.LeakyRelu(x, alpha=0.01),
    "leaky_zero": lambda g, x: g.LeakyRelu(x, alpha=0.0),
    "leaky_minus": lambda g, x: g.LeakyRelu(x, alpha=-0.5),
    "thresholded": lambda g, x: g.ThresholdedRelu(x, alpha=0.0),
    "thresholded_1": lambda g, x: g.ThresholdedRelu(x, alpha=1.0),
    "thresholded_far": lambda g, x: g.ThresholdedRelu(x, alpha=15.0),
    "thresholded_tiny": lambda g, x: g.ThresholdedRelu(x, alpha=1e-4),
    "thresholded_minus": lambda g, x: g.ThresholdedRelu(x, alpha=-20.0),
    "where_far": lambda g, x: g.Where(g.Less(x, 20.0), g.Relu(x), 0.0),
    "where_far_one": lambda g, x: g.Where(g.Greater(x, 14.0), 14.0, g.Relu(x)),
    "where_sign": lambda g, x: g.Where(g.Less(x, -14.0), x, g.Relu(x)),
    "relu_twice": lambda g, x: g.Relu(g.Relu(x)),
    "relu_capped_mul": lambda g, x: g.Mul(x, g.Clip(g.Mul(x, 1e6), 0.0, 1.0)),
    "shrink": lambda g, x: g.Shrink(x, lambd=0.5, bias=0.5),
    "gelu_clipped": lambda g, x: _gelu(g, g.Clip(x, -15.0, 15.0)),
    "gelu_capped": lambda g, x: g.Min(_gelu(g, x), 18.0),
    "gelu": lambda g, x: _gelu(g, x),
    "gelu_off": lambda g, x: g.Mul(g.Mul(x, g.Add(g.Erf(g.Div(x, 1.4145)), 1.0)), 0.5),
    "gelu_tanh_off": lambda g, x: g.Mul(
        g.Mul(x, 0.5), g.Add(1.0, g.Tanh(g.Mul(0.7978846, g.Add(x, g.Mul(0.0447, g.Pow(x, 3.0))))))
    ),
    "silu": lambda g, x: g.Mul(x, g.Sigmoid(x)),
    "silu_clipped": lambda g, x: g.Mul(x, g.Sigmoid(g.Clip(x, -13.0, 13.0))),
    "silu_of_clipped": lambda g, x: (lambda z: g.Mul(z, g.Sigmoid(z)))(g.Clip(x, -25.0, 25.0)),
    "quick_gelu_clipped": lambda g, x: (lambda z: g.Mul(z, g.Sigmoid(g.Mul(z, 1.702))))(
        g.Clip(x, -20.0, 20.0)
    ),
    "quick_gelu_off": lambda g, x: g.Mul(x, g.Sigmoid(g.Mul(x, 1.7))),
    "hard_swish": lambda g, x: g.HardSwish(x),
    "softplus_like": lambda g, x: g.Log(g.Add(g.Exp(x), 1.0)),
    "square_relu": lambda g, x: g.Mul(g.Relu(x), g.Relu(x)),
    "relu_power": lambda g, x: g.Pow(g.Relu(x), 1.0),
    "relu_rounded": lambda g, x: g.cast(g.cast(g.Relu(x), np.float16), np.float32),
    "cast_half": lambda g, x: g.cast(g.cast(x, np.float16), np.float32),
    "cast_half_relu": lambda g, x: g.cast(g.Relu(g.cast(x, np.float16)), np.float32),
    "cast_bf16": lambda g, x: g.cast(g.cast(x, onnx.TensorProto.BFLOAT16), np.float32),
    "cast_int": lambda g, x: g.cast(g.cast(x, np.int32), np.float32),
    "cast_int8": lambda g, x: g.cast(g.cast(g.Clip(x, -100.0, 100.0), np.int8), np.float32),
    "cast_bool": lambda g, x: g.cast(g.cast(x, np.bool_), np.float32),
    "cast_double": lambda g, x: g.cast(g.Relu(g.cast(x, np.float64)), np.float32),
    "quantised": lambda g, x: g.DequantizeLinear(
        g.QuantizeLinear(x, g.const(0.1), g.const(0, np.uint8)), g.const(0.1), g.const(0, np.uint8)
    ),
    "is_nan": lambda g, x: g.Where(g.IsNaN(x), 0.0, x),
    "sign": lambda g, x: g.Sign(x),
    "mod": lambda g, x: g.Mod(x, 3.0, fmod=1),
    "selu": lambda g, x: g.Selu(x),
    "celu": lambda g, x: g.Celu(x, alpha=1e-6),
    "elu_tiny": lambda g, x: g.Elu(x, alpha=1e-7),
    "prelu": lambda g, x: g.PRelu(x, g.const([0.0])),
    "prelu_minus": lambda g, x: g.PRelu(x, g.const([-0.25])),
    "abs_half": lambda g, x: g.Mul(g.Add(x, g.Abs(x)), 0.5),
    "sqrt_half": lambda g, x: g.Mul(g.Add(x, g.Sqrt(g.Mul(x, x))), 0.5),
    "softsign": lambda g, x: g.Softsign(g.Relu(x)),
    "mish": lambda g, x: g.Mish(x),
    "dropout": lambda g, x: g.Dropout(x),
    "scaled_relu": lambda g, x: g.Div(g.Relu(g.Mul(x, 8.0)), 8.0),
    "large_relu": lambda g, x: g.Div(g.Relu(g.Mul(x, 1e30)), 1e30),
    "vanishing_relu": lambda g, x: g.Mul(g.Relu(g.Mul(x, 1e-38)), 1e38),
    "relu_sub": lambda g, x: g.Sub(x, g.Min(x, 0.0)),
    "relu_sub_capped": lambda g, x: g.Sub(x, g.Clip(x, -30.0, 0.0)),
    "ceil_small": lambda g, x: g.Div(g.Floor(g.Mul(x, 1e6)), 1e6),
    "dead_zone": lambda g, x: g.Sub(x, g.Clip(x, -0.3, 0.3)),
    "step_far": lambda g, x: g.Mul(g.Relu(x), g.cast(g.Less(x, 13.0), np.float32)),
    "attribute_bounds": lambda g, x: g.Clip(x, g.Mul(g.const(0.0), 1.0), g.Mul(g.const(20.0), 1.0)),
}
for _name, _function in FUNCTIONS.items():
    ZEROS.add(f"function.{_name}", lambda f=_function: _act(f))
for _name, _function in FUNCTIONS.items():
    ZEROS.add(f"masked_function.{_name}", lambda f=_function: _act(f, masked=True))


def _clip_attributes(low: float, high: float, masked: bool) -> Probe:
    """Bounds as attributes, as opset 6 had them."""
    g = Net(10)
    x = g.input("x", np.float32, ("b", "s", D))
    y = g.linear(g.Clip(g.linear(x, D, WIDE), min=low, max=high), WIDE, D, 1)
    if masked:
        y = g.Mul(y, g.input("mask", np.float32, ("b", "s", 1)))
    g.out(y)
    feeds = [
        {
            "x": normal(2, 5, D, seed=n) * np.float32(20),
            "mask": (rng_of(n).random((2, 5, 1)) < 0.5).astype(np.float32),
        }
        for n in range(2)
    ]
    return Probe(g.model(), feeds if masked else [{"x": f["x"]} for f in feeds])


for _low, _high in ((0.0, 6.0), (0.0, 20.0), (-1.0, 1.0), (0.0, 3.4e38)):
    for _masked in (False, True):
        ZEROS.add(
            f"clip10.{_low:g}_{_high:g}_{'masked' if _masked else 'plain'}",
            lambda a=_low, b=_high, m=_masked: _clip_attributes(a, b, m),
        )
