"""Sample nodes: at least two per operator, in all attribute forms that change the reads."""

from typing import Any

import numpy as np

from pitc.ir.branch import DOMAIN
from tests.rule_proof import Const, Sample

MS = "com.microsoft"
_rng = np.random.default_rng(7)


def f(*shape: int) -> Any:
    """Normal float32."""
    return _rng.normal(size=shape).astype(np.float32)


def pos(*shape: int) -> Any:
    """Positive float32, away from 0."""
    return _rng.uniform(0.5, 2.0, shape).astype(np.float32)


def unit(*shape: int) -> Any:
    """Float32 in (-1, 1)."""
    return _rng.uniform(-0.9, 0.9, shape).astype(np.float32)


def b(*shape: int) -> Any:
    """Bools."""
    return _rng.random(shape) < 0.5


def ids(high: int, *shape: int, low: int = 0, dtype: Any = np.int64) -> Any:
    """Integers in [low, high)."""
    return _rng.integers(low, high, shape).astype(dtype)


def u8(*shape: int) -> Any:
    """Any uint8."""
    return ids(256, *shape, dtype=np.uint8)


def arr(*values: Any, dtype: Any = np.int64) -> Any:
    """A run-time operand with the given values."""
    return np.array(values, dtype)


def c(*values: int) -> Const:
    """A constant int64 vector."""
    return Const(np.array(values, np.int64))


def scalar(value: Any, dtype: Any = np.int64) -> Const:
    """A constant scalar."""
    return Const(np.array(value, dtype))


def _words(text: str) -> list[str]:
    return text.split()


UNARY = {
    **dict.fromkeys(_words("Abs Neg Ceil Floor Round Sign Relu LeakyRelu ThresholdedRelu"), f),
    **dict.fromkeys(_words("Exp Erf Tanh Sigmoid HardSigmoid HardSwish Softplus Softsign Mish"), f),
    **dict.fromkeys(_words("Elu Celu Selu Gelu Sin Cos Atan Sinh Cosh Asinh Identity Clip"), f),
    **dict.fromkeys(_words("Shrink IsNaN IsInf"), f),
    **dict.fromkeys(_words("Sqrt Reciprocal Log"), pos),
    **dict.fromkeys(_words("Asin Acos Atanh Tan"), unit),
}

SAMPLES: list[Sample] = []


def add(op: str, *operands: Any, **keywords: Any) -> None:
    """Enter one sample; keywords that are not fields of `Sample` are attributes."""
    own = {k: keywords.pop(k) for k in ("domain", "opset", "outputs", "symbolic") if k in keywords}
    SAMPLES.append(Sample(op, operands, keywords, **own))


for _op, _make in UNARY.items():
    add(_op, _make(3, 4))
    add(_op, _make(2, 1, 3))
for _op in ("Acosh",):
    add(_op, pos(3, 4) + 1)
    add(_op, pos(5) + 1)
add("LeakyRelu", f(3, 4), alpha=0.25)
add("LeakyRelu", f(3, 4), alpha=-0.5)
add("ThresholdedRelu", f(3, 4), alpha=-1.0)
add("Elu", f(3, 4), alpha=0.5)
for _op in ("Sum", "Mean", "Max", "Min"):
    add(_op, f(2), f(2), f(2), f(2))
add("Celu", f(3, 4), alpha=0.5)
add("Gelu", f(3, 4), approximate="tanh")
add("Clip", f(3, 4), scalar(0.0, np.float32), scalar(0.5, np.float32))
add("Clip", f(3, 4), None, scalar(0.5, np.float32))
add("Clip", f(3, 4), opset=6, min=-0.5, max=0.5)
add("Clip", ids(9, 3, 4, low=-9), scalar(0), None)
add("IsInf", f(3, 4), detect_negative=0)
add("Not", b(3, 4))
add("Not", b(5))
add("BitwiseNot", u8(3, 4))
add("BitwiseNot", ids(9, 5))
for _op in ("Add", "Sub", "Mul", "Div", "PRelu"):
    add(_op, f(2, 3, 4), f(2, 3, 4))
    add(_op, f(2, 3, 4), f(4))
    add(_op, f(2, 3, 4), f(3, 1))
for _op in ("Add", "Sub", "Mul", "Div"):
    add(_op, f(3, 1), f(2, 1, 4))
    add(_op, f(3, 4), scalar(2.0, np.float32))
    add(_op, ids(9, 3, 4, low=1), ids(9, 4, low=1))
add("Pow", pos(3, 4), f(3, 4))
add("Pow", f(3, 4), scalar(2.0, np.float32))
add("Mod", ids(9, 3, 4, low=-9), ids(5, 4, low=1))
add("Mod", f(3, 4), pos(3, 1), fmod=1)
add("BitShift", u8(3, 4), ids(5, 4, dtype=np.uint8), direction="LEFT")
add("BitShift", u8(3, 4), ids(5, 3, 1, dtype=np.uint8), direction="RIGHT")
for _op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
    add(_op, u8(3, 4), u8(4))
    add(_op, ids(99, 3, 1), ids(99, 4))
for _op in ("And", "Or", "Xor"):
    add(_op, b(3, 4), b(4))
    add(_op, b(2, 3, 4), b(3, 1))
for _op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"):
    add(_op, ids(3, 3, 4), ids(3, 4))
    add(_op, f(3, 4), f(3, 1))
for _op in ("Sum", "Mean", "Max", "Min"):
    add(_op, f(3, 4), f(4), f(3, 1))
    add(_op, f(3, 4))
add("Where", b(3, 4), f(4), f(3, 1))
add("Where", b(3, 1, 1), f(2, 4), scalar(0.0, np.float32))
add("Choose", arr(True, dtype=bool), f(3, 4), f(3, 4), domain=DOMAIN)
add("Choose", np.array(False), f(2, 3, 4), f(2, 3, 4), domain=DOMAIN)
add("Cast", f(3, 4), to=7)
add("Cast", ids(3, 3, 4), to=9)
add("Cast", ids(300, 3, 4), to=2)
add("CastLike", f(3, 4), ids(3, 2))
add("CastLike", ids(3, 3, 4), b(1))
add("Dropout", f(3, 4), outputs=2)
add("Dropout", f(3, 4), scalar(0.3, np.float32), scalar(False, bool), outputs=2)
add("Dropout", f(3, 4), opset=9, ratio=0.3)
for _op, _extra in {"BiasGelu": (f(4),), "FastGelu": (f(4),), "Gelu": ()}.items():
    add(_op, f(3, 4), *_extra, domain=MS)
    add(_op, f(2, 3, 4), *_extra, domain=MS)
add("FastGelu", f(3, 4), domain=MS)
add("Swish", f(3, 4), opset=24)
add("Swish", f(3, 4), opset=24, alpha=0.5)
add("QuickGelu", f(3, 4), domain=MS)
add("QuickGelu", f(2, 3), domain=MS, alpha=1.0)

# contractions
add("MatMul", f(3, 4), f(4, 5))
add("MatMul", f(2, 3, 4), f(4, 5))
add("MatMul", f(2, 1, 3, 4), f(5, 4, 6))
add("MatMul", f(4), f(4, 5))
add("MatMul", f(2, 3, 4), f(4))
add("MatMul", f(4), f(4))
add("Gemm", f(3, 4), f(4, 5))
add("Gemm", f(3, 4), f(4, 5), f(5))
add("Gemm", f(4, 3), f(5, 4), f(3, 1), transA=1, transB=1, alpha=0.5, beta=2.0)
add("Gemm", f(3, 4), f(4, 5), f(1, 5), opset=7)
for _eq, _ops in {
    "ij,jk->ik": (f(2, 3), f(3, 4)),
    "bhqd,bhkd->bhqk": (f(2, 3, 4, 5), f(2, 3, 6, 5)),
    "sec,sm->ecm": (f(4, 2, 3), f(4, 5)),
    "...ij,...jk": (f(2, 3, 4), f(2, 4, 5)),
    "...i,...i->...": (f(2, 3, 4), f(1, 3, 4)),
    "ij,jk": (f(2, 3), f(3, 4)),
    "ij->ji": (f(2, 3),),
    "ij->": (f(2, 3),),
    "i,j->ij": (f(3), f(4)),
    "ij,ij,j->i": (f(2, 3), f(2, 3), f(3)),
    "b...d, b d -> b...": (f(2, 3, 4, 5), f(2, 5)),
}.items():
    add("Einsum", *_ops, equation=_eq)
add("FusedMatMul", f(2, 3, 4), f(2, 5, 4), domain=MS, transB=1, alpha=0.5)
add("FusedMatMul", f(4, 3), f(4, 5), domain=MS, transA=1)
add("FusedMatMul", f(3, 2, 4), f(2, 4, 5), domain=MS, transBatchA=1)
add(
    "FusedMatMul",
    f(4, 2, 3),
    f(5, 2, 4),
    domain=MS,
    transA=1,
    transB=1,
    transBatchA=1,
    transBatchB=1,
)
add("FusedGemm", f(3, 4), f(4, 5), f(5), domain=MS, activation="Relu")
add("FusedGemm", f(3, 4), f(5, 4), domain=MS, activation="Tanh", transB=1)
add("MatMulInteger", u8(3, 4), u8(4, 5))
add("MatMulInteger", u8(3, 4), u8(4, 5), scalar(3, np.uint8), Const(ids(9, 5, dtype=np.uint8)))
_q = (scalar(0.1, np.float32), scalar(100, np.uint8))
add("QLinearMatMul", u8(3, 4), *_q, u8(4, 5), *_q, scalar(0.9, np.float32), scalar(9, np.uint8))
add(
    "QLinearMatMul",
    u8(2, 3, 4),
    *_q,
    u8(2, 4, 5),
    *_q,
    scalar(2.0, np.float32),
    scalar(9, np.uint8),
)
_scale, _point = scalar(0.1, np.float32), scalar(100, np.uint8)
for _a, _rest in (
    ((3, 4), (_scale, Const(pos(5)), _point, Const(u8(5)), Const(f(5)))),
    ((2, 3, 4), (_scale, _scale, _point)),
):
    add("MatMulIntegerToFloat", u8(*_a), Const(u8(4, 5)), *_rest, domain=MS)
add("DynamicQuantizeMatMul", f(3, 4), Const(u8(4, 5)), Const(pos(5)), Const(u8(5)), domain=MS)
add(
    "DynamicQuantizeMatMul",
    f(2, 3, 4),
    Const(u8(4, 5)),
    _scale,
    _point,
    Const(f(5)),
    domain=MS,
)
add("QGemm", u8(3, 4), *_q, u8(4, 5), *_q, ids(9, 5, dtype=np.int32), *_q, domain=MS)
add("QGemm", u8(3, 4), *_q, u8(5, 4), *_q, domain=MS, transB=1)
for _op in ("QLinearAdd", "QLinearMul"):
    add(_op, u8(2, 3), *_q, u8(2, 3), *_q, *_q, domain=MS)
    add(_op, u8(2, 3, 4), *_q, u8(4), *_q, *_q, domain=MS)
for _op in ("QLinearLeakyRelu", "QLinearSigmoid"):
    add(_op, u8(2, 3), *_q, *_q, domain=MS)
    add(_op, u8(2, 3, 4), *_q, *_q, domain=MS)
_256th = (u8(2, 3, 4), *_q, scalar(1 / 256, np.float32), _point)
SAMPLES.append(Sample("QLinearSoftmax", _256th, {"opset": 13}, MS))
SAMPLES.append(Sample("QLinearSoftmax", _256th, {"opset": 12, "axis": 1}, MS))
add("QLinearWhere", b(2, 3), u8(2, 3), *_q, u8(2, 3), *_q, *_q, domain=MS)
add("QLinearWhere", b(2, 1), u8(2, 3), *_q, u8(3), *_q, *_q, domain=MS)
add("MatMulNBits", f(3, 32), Const(u8(5, 2, 8)), f(10), domain=MS, K=32, N=5, bits=4, block_size=16)
add(
    "MatMulNBits",
    f(2, 3, 32),
    Const(u8(4, 2, 8)),
    f(8),
    domain=MS,
    K=32,
    N=4,
    bits=4,
    block_size=16,
)

# convolutions and pooling
add("Conv", f(2, 3, 6), f(4, 3, 3))
add("Conv", f(2, 3, 6, 5), f(4, 3, 3, 2), f(4), pads=[1, 0, 1, 1], strides=[2, 1])
add("Conv", f(2, 4, 7), f(6, 2, 3), group=2, dilations=[2], symbolic=True)
add("Conv", f(2, 4, 7), f(4, 1, 3), group=4, auto_pad="SAME_UPPER", symbolic=False)
add("Conv", f(1, 2, 7), f(3, 2, 4), auto_pad="SAME_LOWER", strides=[2], symbolic=False)
add("FusedConv", f(2, 3, 6), f(4, 3, 3), f(4), domain=MS, activation="Relu")
add("FusedConv", f(2, 3, 6, 5), f(4, 3, 1, 1), domain=MS, activation="Relu")
add("ConvInteger", u8(2, 3, 5, 5), u8(4, 3, 2, 2))
add("ConvInteger", u8(2, 3, 5, 5), u8(4, 3, 2, 2), scalar(3, np.uint8), pads=[1, 1, 1, 1])
add("ConvTranspose", f(2, 3, 5), f(3, 4, 3), f(4))
add("ConvTranspose", f(2, 3, 4, 4), f(3, 2, 2, 2), strides=[2, 2])
add(
    "ConvTranspose",
    f(2, 4, 5),
    f(4, 3, 3),
    f(6),
    group=2,
    dilations=[2],
    pads=[1, 0],
    symbolic=False,
)
add("ConvTranspose", f(2, 3, 4, 5), f(3, 2, 2, 3), strides=[3, 2], output_padding=[2, 1])
add("ConvTranspose", f(2, 3, 4, 5), f(3, 2, 2, 3), strides=[3, 2], auto_pad="SAME_LOWER")
add("ConvTranspose", f(2, 4, 4, 5), f(4, 2, 2, 3), group=2, output_shape=[4, 7], symbolic=False)
add("Squeeze", f(1, 3, 1), c(), symbolic=False)
add("Slice", f(4, 5), c(3), c((1 << 63) - 1), c(1), c(-2))
add("Slice", f(4, 5), c(3), c((1 << 31) - 1), c(1), c(-1))
for _op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"):
    add(_op, f(2, 3, 4, 5))
    add(_op, f(2, 3, 5))
for _op in ("AveragePool", "MaxPool", "LpPool"):
    add(_op, f(2, 3, 6), kernel_shape=[3])
    add(_op, f(2, 3, 6, 5), kernel_shape=[2, 3], strides=[2, 1], pads=[0, 1, 0, 1])
add("MaxPool", f(2, 3, 6), kernel_shape=[2], strides=[2], outputs=2)
for _op in ("AveragePool", "LpPool", "MaxPool"):
    for _n in (1, 2, 3, 7):  # the last window may lie behind the image
        for _k, _step in ((2, 2), (3, 2), (1, 4), (3, 3)):
            add(_op, f(1, 2, _n), kernel_shape=[_k], strides=[_step], ceil_mode=1)
        _same = {"auto_pad": "SAME_UPPER" if _n % 2 else "SAME_LOWER", "symbolic": False}
        add(_op, f(1, 2, _n), kernel_shape=[2], strides=[2], dilations=[2], opset=22, **_same)
        add(_op, f(1, 2, _n), kernel_shape=[3], strides=[3], dilations=[2], opset=22, **_same)
for _op in ("AveragePool", "MaxPool"):
    add(_op, f(1, 2, 4), kernel_shape=[2], strides=[3], pads=[1, 1], ceil_mode=1, opset=12)
add("AveragePool", f(2, 3, 5), kernel_shape=[3], pads=[1, 1], count_include_pad=1)

# normalisers
add("Softmax", f(2, 3, 4))
add("Softmax", f(2, 3, 4), axis=1)
add("Softmax", f(2, 3, 4), opset=11, axis=1)
add("Softmax", f(2, 3, 4), opset=11)
add("Softmax", f(2, 3, 4), opset=11, axis=-1)
add("LogSoftmax", f(2, 3, 4), axis=0)
add("LogSoftmax", f(2, 3, 4), opset=11, axis=1)
add("Hardmax", f(2, 3, 4))
add("Hardmax", f(2, 3, 4), opset=11, axis=1)
add("LayerNormalization", f(2, 3, 4), f(4), f(4))
add("LayerNormalization", f(2, 3, 4), f(3, 4), axis=1)
add("LayerNormalization", f(2, 3, 4), f(4), f(4), outputs=3)
add("LayerNormalization", f(2, 3, 4), f(4), f(1), axis=-2)
add("RMSNormalization", f(2, 3, 4), f(4), opset=23)
add("RMSNormalization", f(2, 3, 4), f(3, 4), opset=23, axis=1)
add("SimplifiedLayerNormalization", f(2, 3, 4), f(4))
add("SimplifiedLayerNormalization", f(3, 4), f(4), outputs=2)
add("SkipLayerNormalization", f(2, 3, 4), f(2, 3, 4), f(4), f(4), domain=MS)
add("SkipLayerNormalization", f(2, 3, 4), f(2, 3, 4), f(4), None, f(4), domain=MS)
add("SkipLayerNormalization", f(2, 3, 4), f(3, 4), f(4), f(4), f(4), domain=MS, outputs=4)
add("SkipLayerNormalization", f(2, 3, 4), f(1, 3, 4), f(4), domain=MS)
add("SkipSimplifiedLayerNormalization", f(2, 3, 4), f(2, 3, 4), f(4), domain=MS)
add("SkipSimplifiedLayerNormalization", f(2, 3, 4), f(2, 3, 4), f(4), f(4), domain=MS)
add("InstanceNormalization", f(2, 3, 4), f(3), f(3))
add("InstanceNormalization", f(2, 3, 4, 5), f(3), f(3))
add("GroupNormalization", f(2, 6, 4), f(6), f(6), num_groups=3, symbolic=False)
add("GroupNormalization", f(2, 4, 3, 2), f(2), f(2), opset=18, num_groups=2, symbolic=False)
add("BatchNormalization", f(2, 3, 4), f(3), f(3), f(3), pos(3))
add("BatchNormalization", f(2, 3), f(3), f(3), f(3), pos(3), opset=9)
add("LpNormalization", f(2, 3, 4))
add("LpNormalization", f(2, 3, 4), axis=1, p=1)
add("MeanVarianceNormalization", f(2, 3, 4, 5))
add("MeanVarianceNormalization", f(2, 3, 4), axes=[1, -1])

# reductions and order
for _op in _words(
    "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare "
    "ReduceLogSum ReduceLogSumExp"
):
    add(_op, pos(2, 3, 4), c(1))
    add(_op, pos(2, 3, 4), keepdims=0)
    add(_op, pos(2, 3, 4), opset=11, axes=[-1, 0])
add("ReduceSum", f(2, 3, 4), c(-1, 0), keepdims=0)
add("ReduceSum", f(2, 3, 4), c(), noop_with_empty_axes=1)
add("ReduceSum", f(2, 3, 4), noop_with_empty_axes=1)
add("ReduceSum", f(2, 3, 4), c())
add("ArgMax", f(2, 3, 4), axis=1)
add("ArgMax", f(2, 3, 4), axis=-1, keepdims=0)
add("ArgMin", f(2, 3, 4))
add("ArgMin", f(2, 3, 4), axis=2, select_last_index=1)
add("TopK", f(3, 5), c(2), outputs=2)
add("TopK", f(5, 3), c(4), axis=0, largest=0, outputs=2)
add("TopK", f(3, 5), opset=1, k=2, outputs=2)
add("CumSum", f(3, 4), scalar(1))
add("CumSum", f(3, 4), scalar(0), exclusive=1)
add("CumSum", f(3, 4), scalar(-1), reverse=1)
add("CumSum", f(3, 4), scalar(-1), reverse=1, exclusive=1)
add("CumProd", f(3, 4), scalar(1), opset=26)
add("CumProd", f(3, 4), scalar(0), exclusive=1, reverse=1, opset=26)
add("Trilu", f(2, 4, 5))
add("Trilu", f(4, 4), scalar(1), upper=0)
add("Trilu", f(4, 4), scalar(-1), upper=1)
add("ReverseSequence", f(4, 3), arr(2, 3, 4))
add("ReverseSequence", f(3, 4, 2), arr(2, 3, 4), batch_axis=0, time_axis=1)

# movement
add("Transpose", f(2, 3, 4))
add("Transpose", f(2, 3, 4, 5), perm=[0, 2, 1, 3])
add("Reshape", f(2, 3, 4), c(6, 4))
add("Reshape", f(2, 3, 4), c(0, -1))
add("Reshape", f(2, 12), c(0, 3, 4))
add("Reshape", f(4, 6), c(2, 2, 3, 2))
add("Reshape", f(2, 3, 4), c(4, 3, 2), allowzero=1)
add("Reshape", f(2, 1, 4), c(-1))
add("Flatten", f(2, 3, 4))
add("Flatten", f(2, 3, 4), axis=0)
add("Flatten", f(2, 3, 4), axis=-1)
add("Squeeze", f(2, 1, 3, 1), c(1))
add("Squeeze", f(2, 1, 3, 1), opset=11, axes=[-1])
add("Squeeze", f(2, 1, 3, 1), symbolic=False)
add("Unsqueeze", f(2, 3), c(0, -1))
add("Unsqueeze", f(2, 3), opset=11, axes=[1])
add("Expand", f(2, 1, 3), c(4, 2, 5, 3), symbolic=False)
add("Expand", f(3, 1), c(3, 4), symbolic=False)
add("Expand", f(2, 1, 3), c(4, 1, 5, 1))
add("Expand", f(1), c(2, 1))
add("Tile", f(2, 3), c(2, 1))
add("Tile", f(2, 1, 3), c(1, 4, 2))
add("Slice", f(4, 5), c(1), c(3))
add("Slice", f(4, 5), c(-3, 0), c(-1, 1 << 40), c(-1, 0))
add("Slice", f(4, 5), c(0), c(5), c(1), c(2))
add("Slice", f(4, 5), c(-1), c(-(1 << 40)), c(1), c(-1))
add("Slice", f(4, 5), c(3), c(0), c(1), c(-2))
add("Slice", f(4, 5), c(-9), c(9), c(0), c(3))
add("Slice", f(4, 5), c(-9), c(-9), c(0), c(-1))
add("Slice", f(4, 5), opset=9, starts=[1, -2], ends=[4, 5], axes=[0, 1])
add("Slice", f(4, 5), opset=9, starts=[1], ends=[1000])
add("Concat", f(2, 3), f(2, 1), f(2, 2), axis=1)
add("Concat", f(2, 3), f(4, 3), axis=-2)
add("Split", f(2, 6), axis=1, outputs=3, num_outputs=3, symbolic=False)
add("Split", f(7, 2), axis=0, outputs=3, num_outputs=3, symbolic=False)
add("Split", f(2, 6), c(1, 5), axis=-1, outputs=2)
add("Split", f(6, 2), opset=11, split=[2, 4], outputs=2)
add("Split", f(6, 2), opset=13, outputs=2, symbolic=False)
add("Pad", f(2, 3), c(0, 1, 0, 2))
add("Pad", f(2, 3), c(1, 0), scalar(7.0, np.float32), c(1))
add("Pad", f(3, 4), c(1, -1, 0, 2))
add("Pad", f(3, 4), c(0, 2, 0, 1), mode="reflect")
add("Pad", f(3, 4), c(1, 0, 1, 0), mode="edge")
for _mode in ("constant", "edge", "reflect", "wrap"):  # as long as before, and yet moved
    add("Pad", f(3, 4), c(0, 1, 0, -1), mode=_mode)
    add("Pad", f(4, 5), c(-1, 1, 1, -1), mode=_mode)
add("Pad", f(3, 4), opset=10, pads=[0, 1, 0, 0], value=2.0)
add("CenterCropPad", f(4, 5), c(2, 8), opset=18, symbolic=False)
add("CenterCropPad", f(3, 7, 2), c(4, 4), opset=18, axes=[1, -1], symbolic=False)
add("CenterCropPad", f(2, 6), c(3), opset=18, axes=[1], symbolic=False)
add("DepthToSpace", f(2, 8, 2, 3), blocksize=2, symbolic=False)
add("DepthToSpace", f(1, 8, 2, 3), blocksize=2, mode="CRD", symbolic=False)
add("SpaceToDepth", f(2, 3, 4, 6), blocksize=2, symbolic=False)
add("SpaceToDepth", f(1, 2, 2, 4), blocksize=2, symbolic=False)

# gathers and scatters
add("Gather", f(5, 3), ids(5, 2, 3))
add("Gather", f(2, 5, 3), ids(5, 4), axis=1)
add("Gather", f(5, 3), scalar(2))
add("Gather", f(5, 3), scalar(-1), axis=-1)
add("Gather", f(5, 3), c(0, 2, 4))
add("Gather", f(5, 3), c(3, 0, 4, 3))
add("Gather", f(3, 5), c(-3, -2, -1), axis=1)
add("Gather", f(5, 3), ids(5, 3, low=-5))
add("GatherND", f(3, 4, 5), ids(3, 6, 2), symbolic=False)
add("GatherND", f(3, 4), ids(3, 6, 1))
add("GatherND", f(2, 4, 5), ids(4, 2, 3, 1), batch_dims=1)
add("GatherElements", f(3, 4), ids(3, 2, 4))
add("GatherElements", f(3, 4), ids(4, 3, 6), axis=1)
add("GatherElements", f(3, 4), ids(4, 2, 6, low=-4), axis=-1)
_twice = arr([1, 1, 2], [0, 3, 3], [2, 0, 2])
add("ScatterElements", f(3, 4), _twice, f(3, 3), axis=1)
for _how in ("add", "mul", "max", "min"):
    add("ScatterElements", f(3, 4), _twice, f(3, 3), axis=1, reduction=_how)
add("ScatterElements", f(4, 3), arr([1, 1], [1, 3], [1, 3]), f(3, 2))
add("Scatter", f(3, 4), _twice, f(3, 3), axis=1, opset=9)
add("Scatter", f(3, 4), arr([1, 1, 1, 2], [1, 2, 2, 2]), f(2, 4), opset=9)
add("Scatter", f(4, 3), arr([1, 1], [1, 3], [1, 3]), f(3, 2), opset=9)
add("ScatterND", f(5, 3), arr([1], [1], [4]), f(3, 3))
add("ScatterND", f(5, 3), arr([1], [1], [4]), f(3, 3), reduction="add")
add("ScatterND", f(3, 4, 2), arr(*([[[0, 1], [0, 1]]] * 2)), f(2, 2, 2), symbolic=False)
add("OneHot", ids(4, 2, 3), scalar(4), arr(0.0, 2.0, dtype=np.float32))
add("OneHot", ids(4, 2, 3), c(4), arr(0, 1), axis=0)

# sources
add("Shape", f(2, 3, 4))
add("Shape", f(2, 3, 4), start=1, end=-1)
add("Size", f(2, 3))
add("Size", f(5))
add("ConstantOfShape", c(2, 3))
add("ConstantOfShape", c())
add("Range", scalar(0), scalar(7), scalar(2))
add("Range", scalar(5), scalar(0), scalar(-2))
add("NonZero", f(3, 2))
add("NonZero", np.array(2.0, np.float32))
add("NonZero", np.array(0.0, np.float32))
add("NonZero", arr(0, 1, 1, 0))
add("EyeLike", f(3, 4))
add("EyeLike", f(3, 3), k=1)

# quantisation
_s, _z = scalar(0.1, np.float32), scalar(3, np.uint8)
add("QuantizeLinear", f(2, 3, 4), _s, _z)
add("QuantizeLinear", f(2, 3, 4), pos(3), u8(3))
add("DequantizeLinear", u8(2, 3, 4), _s, _z)
add("DequantizeLinear", u8(2, 3, 4), pos(4), u8(4), axis=-1)
add("DequantizeLinear", u8(4, 6), pos(4, 3), u8(4, 3), axis=1, block_size=2, symbolic=False)
add("QuantizeLinear", f(2, 3), _s, domain=MS)
add("QuantizeLinear", f(2, 3), pos(3), u8(3), domain=MS, axis=1)
add("DequantizeLinear", u8(2, 3), _s, _z, domain=MS)
add("DequantizeLinear", u8(2, 3), pos(3), u8(3), domain=MS, axis=1)
add("DynamicQuantizeLinear", f(2, 3), outputs=3)
add("DynamicQuantizeLinear", f(5), outputs=3)

# fused transformer operators
_heads = {"domain": MS, "num_heads": 2}
add(
    "Attention",
    f(2, 3, 4),
    Const(f(4, 12)),
    f(12),
    arr([1, 1, 0], [1, 0, 1], dtype=np.int32),
    **_heads,
)
add("Attention", f(2, 3, 4), Const(f(4, 12)), f(12), arr(2, 3, dtype=np.int32), **_heads)
add("Attention", f(2, 3, 4), Const(f(4, 12)), f(12), **_heads)
add("MultiHeadAttention", f(2, 3, 4), f(2, 5, 4), f(2, 5, 4), **_heads)
add(
    "MultiHeadAttention",
    f(2, 3, 4), f(2, 5, 4), f(2, 5, 4), f(12), arr(*([[1, 1, 0, 1, 0]] * 2), dtype=np.int32),
    **_heads,
)  # fmt: skip
add("MultiHeadAttention", f(2, 3, 4), f(2, 3, 4), f(2, 3, 4), unidirectional=1, **_heads)
_tables = f(9, 4), f(6, 4), f(2, 4), f(4), f(4)
_tokens = ids(9, 2, 3, dtype=np.int32), ids(2, 2, 3, dtype=np.int32)
add("EmbedLayerNormalization", *_tokens, *_tables, domain=MS, outputs=2)
add(
    "EmbedLayerNormalization",
    *_tokens, *_tables, ids(2, 2, 3, dtype=np.int32), ids(6, 2, 3, dtype=np.int32),
    domain=MS, outputs=2,
)  # fmt: skip
_experts = f(4, 8, 6), None, f(4, 6, 8)
add("MoE", f(5, 6), f(5, 4), *_experts, domain=MS, k=1, activation_type="relu")
add("MoE", f(2, 3, 6), f(6, 4), *_experts, domain=MS, k=2, activation_type="gelu")
add("MoEGroupRouter", f(5, 6), f(6), domain=MS, top_k=2)
add("MoEGroupRouter", f(2, 3, 8), f(8), domain=MS, top_k=2, n_group=4, topk_group=2)

# standard attention and rotary embeddings
_v24 = {"opset": 24}
add("Attention", f(2, 3, 4, 5), f(2, 3, 6, 5), f(2, 3, 6, 5), **_v24)
add(
    "Attention",
    f(2, 4, 3, 5), f(2, 2, 6, 5), f(2, 2, 6, 3), b(2, 1, 3, 6) | (np.arange(6) == 0),
    **_v24, symbolic=False,
)  # fmt: skip
add(
    "Attention",
    f(2, 3, 8), f(2, 6, 8), f(2, 6, 8), f(3, 6),
    **_v24, symbolic=False, q_num_heads=2, kv_num_heads=2,
)  # fmt: skip
add("Attention", f(1, 2, 5, 4), *(f(1, 2, 5, 4) for _ in range(2)), is_causal=1, **_v24)
_angles = f(9, 2), f(9, 2)
add("RotaryEmbedding", f(2, 3, 5, 4), *_angles, ids(9, 2, 5), **_v24)
add("RotaryEmbedding", f(2, 5, 8), f(2, 5, 2), f(2, 5, 2), num_heads=2, interleaved=1, **_v24)
add("RotaryEmbedding", f(2, 5, 8), ids(9, 2, 5), *_angles, num_heads=2, domain=MS)
add("RotaryEmbedding", f(2, 2, 5, 4), arr(1), *_angles, domain=MS)

# images
add("LRN", f(2, 5, 3, 2), size=3, alpha=1.0)
add("LRN", f(1, 4, 3, 3), size=5, alpha=2.0, beta=0.5)
add("LRN", f(1, 4, 3, 3), size=3, bias=0.0)
_twice = Const(np.array([1, 1, 2, 3], np.float32))
add("Upsample", f(2, 3, 2, 2), _twice, opset=9)
add("Upsample", f(1, 2, 3, 2), opset=7, scales=[1.0, 1.0, 2.0, 2.0])
add("Upsample", f(2, 3, 3, 2), Const(np.array([1, 1, 2, 2], np.float32)), opset=9, mode="linear")
for _scales in ([1, 1, 2.1, 1], [1, 1.1, 2, 1], [1, 1, 1.1, 0.7], [1.3, 1, 1, 3]):
    _by = Const(np.array(_scales, np.float32))
    if min(_scales) == _scales[0] == 1:
        add("Upsample", f(2, 3, 3, 2), _by, opset=9)
        add("Resize", f(2, 3, 3, 2), _by, opset=10)
    add("Resize", f(2, 3, 3, 2), None, _by, mode="linear" if _scales[0] == 1 else "nearest")
    add("Resize", f(2, 3, 3, 2), None, _by, coordinate_transformation_mode="align_corners")
add("Resize", f(2, 3, 2, 2), _twice, opset=10)
add("Resize", f(2, 3, 2, 2), None, _twice)
add("Resize", f(2, 3, 2, 2), None, _twice, nearest_mode="round_prefer_ceil")
add(
    "Resize",
    f(2, 3, 2, 2), None, None, c(2, 3, 8, 2),
    nearest_mode="floor", coordinate_transformation_mode="asymmetric", symbolic=False,
)  # fmt: skip
add("Resize", f(2, 3, 4, 4), None, None, c(6, 2), axes=[2, 3], mode="linear", symbolic=False)
add("Resize", f(2, 3, 4, 4), None, Const(np.array([1, 1, 0.5, 1.5], np.float32)), mode="cubic")
_quantised = scalar(0.1, np.float32), scalar(99, np.uint8)
_wide = scalar(9.0, np.float32), scalar(128, np.uint8)
add("QLinearConv", u8(2, 3, 5), *_quantised, u8(4, 3, 3), *_quantised, *_wide)
add(
    "QLinearConv",
    u8(1, 4, 4, 4), *_quantised, u8(6, 2, 3, 3), pos(6), u8(6) // 250,
    scalar(90.0, np.float32), _wide[1], ids(99, 6, dtype=np.int32), group=2,
    pads=[1, 0, 1, 0], strides=[2, 1],
)  # fmt: skip

# places that are data
add("Compress", f(4, 3), arr(True, False, True, False, dtype=bool), axis=0)
add("Compress", f(3, 4), arr(True, False, True, True, False, dtype=bool))
add("TensorScatter", f(2, 3, 6, 4), f(2, 3, 2, 4), arr(1, 3), **_v24)
add("TensorScatter", f(2, 6, 4), f(2, 2, 4), axis=1, **_v24)
add("Det", f(3, 4, 4))
add("Det", f(3, 3))
add("BitCast", f(3, 4), to=6, opset=26)
add("BitCast", ids(9, 5, dtype=np.int32), to=12, opset=26)

# sampled images
add("GridSample", f(2, 3, 4, 5), unit(2, 3, 2, 2), opset=20)
add("GridSample", f(1, 2, 3, 4, 3), unit(1, 2, 3, 2, 3), opset=20, mode="nearest")
add("AffineGrid", f(2, 2, 3), c(2, 1, 3, 4), opset=20, symbolic=False)
add("AffineGrid", f(2, 3, 4), c(2, 1, 3, 2, 4), opset=20, align_corners=1, symbolic=False)
_boxes = np.array([[0, 0, 3, 2], [1, 0, 4, 4], [0, 2, 2, 3]], np.float32)
add("RoiAlign", f(2, 3, 6, 5), _boxes, arr(0, 1, 1), sampling_ratio=1, output_height=2)
add("RoiAlign", f(2, 3, 6, 5), _boxes, arr(1, 0, 0), opset=16, sampling_ratio=2)
add("Col2Im", f(2, 12, 9), c(4, 4), c(2, 2), symbolic=False)
add("Col2Im", f(1, 6, 4), c(8), c(3), strides=[2], pads=[0, 1], symbolic=False)

# signals
add("DFT", f(2, 4, 1), opset=20)
add("DFT", f(2, 5, 3, 2), None, scalar(1), opset=20, inverse=1)
add("DFT", f(3, 4, 2, 1), scalar(6), opset=17, axis=1, onesided=1)
add("STFT", f(2, 16, 1), scalar(4), f(8))
add("STFT", f(2, 12, 1), scalar(3), None, scalar(6), onesided=0)
for _op in ("BlackmanWindow", "HammingWindow", "HannWindow"):
    add(_op, scalar(6))
    add(_op, scalar(5), periodic=0)
_band = scalar(0.0, np.float32), scalar(4000.0, np.float32)
add("MelWeightMatrix", scalar(4), scalar(16), scalar(8000), *_band)
add("MelWeightMatrix", scalar(5), scalar(32), scalar(8000), *_band)

# few elements that are not 0
add("Equal", c(3, 5, 4, 0), ids(7, 2, 3, 1))
add("Equal", ids(7, 5), Const(np.array([[3], [5], [4]])))
add("Equal", c(3, 5, 3), ids(7, 4, 1))
for _how in ("add", "max"):
    _zeros = Const(np.zeros((3, 9), np.float32))
    _ids = arr([1, -2], [0, 8], [3, -1])
    add("ScatterElements", _zeros, _ids, f(3, 2), axis=-1, reduction=_how, symbolic=False)
add("OneHot", ids(4, 2, 3, low=-9), c(4), c(0, 3), axis=1)
