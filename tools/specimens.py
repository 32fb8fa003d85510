"""One typical node per operator, for the page of operators.

A specimen is text: one word per operand, `[type:]extents`, with letters for symbolic extents:

    a,b        float32 [a, b]           i:n        int64 [n]           -   absent
    .          float32 scalar           =1,2       the int64 constant [1, 2]
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from pitc.ir.branch import CHOOSE, DOMAIN, choice_function
from pitc.passes.rules.registry import MICROSOFT

TYPES = {
    "f": TensorProto.FLOAT,
    "i": TensorProto.INT64,
    "j": TensorProto.INT32,
    "u": TensorProto.UINT8,
    "b": TensorProto.BOOL,
}


@dataclass(frozen=True, slots=True)
class Specimen:
    """One node.

    Args:
        operands: The operands, as text.
        attributes: Attributes of the node.
        outputs: Number of outputs.
    """

    operands: str
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1


def _node(operands: str, outputs: int = 1, /, **attributes: Any) -> Specimen:
    return Specimen(operands, attributes, outputs)


def _each(names: str, specimen: Specimen) -> dict[str, Specimen]:
    return dict.fromkeys(names.split(), specimen)


_HEADS = {"num_heads": 8}
_SCALED = ". u:."

STANDARD: dict[str, Specimen] = {
    **_each(
        "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Celu Clip Cos Cosh Elu Erf Exp Floor Gelu "
        "HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Reciprocal Relu Round "
        "Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu "
        "Dropout",
        _node("a,b"),
    ),
    **_each("Add Sub Mul Div Pow Max Min Sum Mean", _node("a,b b")),
    **_each("Equal Greater GreaterOrEqual Less LessOrEqual", _node("a,b b")),
    **_each("And Or Xor", _node("b:a,b b:b")),
    **_each("BitwiseAnd BitwiseOr BitwiseXor", _node("i:a,b i:b")),
    "Not": _node("b:a,b"),
    "BitwiseNot": _node("i:a,b"),
    "BitShift": _node("u:a,b u:b", direction="LEFT"),
    "BitCast": _node("a,b", to=int(TensorProto.INT32)),
    "Mod": _node("i:a,b i:b"),
    "PRelu": _node("a,b b"),
    "Where": _node("b:a,1 a,b b"),
    "Cast": _node("a,b", to=int(TensorProto.INT64)),
    "CastLike": _node("a,b i:."),
    # contractions
    "MatMul": _node("b,s,k k,n"),
    "Gemm": _node("m,k k,n n"),
    "Einsum": _node("b,h,q,d b,h,k,d", equation="bhqd,bhkd->bhqk"),
    "MatMulInteger": _node("u:m,k u:k,n"),
    "QLinearMatMul": _node(f"u:m,k {_SCALED} u:k,n {_SCALED} {_SCALED}"),
    "Conv": _node("n,c,h,w f,c,3,3 f", pads=[1, 1, 1, 1]),
    "ConvInteger": _node("u:n,c,h,w u:f,c,3,3"),
    "QLinearConv": _node(f"u:n,c,h,w {_SCALED} u:f,c,3,3 {_SCALED} {_SCALED}"),
    "ConvTranspose": _node("n,c,8,8 c,f,3,3"),
    "Attention": _node("b,h,q,d b,h,k,d b,h,k,d"),
    "RotaryEmbedding": _node("b,h,s,d p,e p,e i:b,s"),
    # windows
    **_each("AveragePool LpPool MaxPool", _node("n,c,h,w", kernel_shape=[2, 2])),
    **_each("GlobalAveragePool GlobalLpPool GlobalMaxPool", _node("n,c,h,w")),
    "LRN": _node("n,c,h,w", size=5),
    "Upsample": _node("n,c,h,w =f1,1,2,2"),
    "Resize": _node("n,c,h,w - =f1,1,2,2"),
    "Col2Im": _node("n,12,l =8,8 =2,2"),
    "GridSample": _node("n,c,h,w n,p,q,2"),
    "AffineGrid": _node("2,2,3 =2,1,8,8"),
    "RoiAlign": _node("n,c,h,w r,4 i:r", output_height=7, output_width=7),
    # signals
    "DFT": _node("a,s,1"),
    "STFT": _node("a,64,1 =s8 16"),
    **_each("BlackmanWindow HammingWindow HannWindow", _node("=s16")),
    "MelWeightMatrix": _node("=s8 =s16 =s8000 =e0 =e4000"),
    # normalisers and reductions
    **_each("Softmax LogSoftmax Hardmax LpNormalization", _node("a,b")),
    **_each("LayerNormalization", _node("a,b,d d d")),
    **_each("RMSNormalization SimplifiedLayerNormalization", _node("a,b,d d")),
    "InstanceNormalization": _node("n,c,h c c"),
    "GroupNormalization": _node("n,6,h 6 6", num_groups=3),
    "BatchNormalization": _node("n,c,h c c c c"),
    "MeanVarianceNormalization": _node("n,c,h,w"),
    **_each(
        "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin "
        "ReduceProd ReduceSum ReduceSumSquare",
        _node("a,b =1", keepdims=0),
    ),
    **_each("ArgMax ArgMin", _node("a,b", axis=1, keepdims=0)),
    "TopK": _node("a,b =3", 2),
    **_each("CumSum CumProd", _node("a,b =1")),
    "Trilu": _node("a,b"),
    "ReverseSequence": _node("s,b i:b"),
    "Det": _node("a,n,n"),
    # movement
    "Transpose": _node("a,b,c", perm=[0, 2, 1]),
    "Reshape": _node("a,b,12 =0,0,3,4"),
    "Flatten": _node("a,b,c"),
    "Squeeze": _node("a,1,b =1"),
    "Unsqueeze": _node("a,b =1"),
    "Expand": _node("a,1 =1,4"),
    "Tile": _node("a,b =2,1"),
    "Slice": _node("a,9 =2 =5 =1"),
    "Concat": _node("a,b a,c", axis=1),
    "Split": _node("a,b =1,3", 2, axis=1),
    "Pad": _node("a,b =0,1,0,2"),
    "CenterCropPad": _node("a,8 =4", axes=[1]),
    "DepthToSpace": _node("n,8,4,4", blocksize=2),
    "SpaceToDepth": _node("n,2,4,4", blocksize=2),
    # gathers and scatters
    "Gather": _node("v,d i:b,s"),
    "GatherND": _node("a,b,d i:n,2"),
    "GatherElements": _node("a,b i:a,n", axis=1),
    **_each("Scatter ScatterElements", _node("a,b i:a,n a,n", axis=1)),
    "ScatterND": _node("a,d i:n,1 n,d"),
    "OneHot": _node("i:a =5 2"),
    "Compress": _node("a,b b:c", axis=0),
    "TensorScatter": _node("b,h,s,d b,h,t,d i:b"),
    # sizes and positions
    **_each("Shape Size NonZero EyeLike", _node("a,b")),
    "ConstantOfShape": _node("=3,4"),
    "Range": _node("=s0 =s9 =s2"),
    # quantisation
    "QuantizeLinear": _node(f"a,b {_SCALED}"),
    "DequantizeLinear": _node(f"u:a,b {_SCALED}"),
    "DynamicQuantizeLinear": _node("a,b", 3),
}

FUSED: dict[str, Specimen] = {
    **_each("Gelu QuickGelu", _node("a,b")),
    **_each("BiasGelu FastGelu", _node("a,b b")),
    **_each("FusedMatMul TransposeMatMul", _node("b,m,k b,k,n")),
    "FusedGemm": _node("m,k k,n n", activation="Relu"),
    "FusedConv": _node("n,c,h,w f,c,3,3 f", activation="Relu"),
    "MatMulIntegerToFloat": _node("u:m,k u:k,n . n u:. u:n n"),
    "DynamicQuantizeMatMul": _node("m,k u:k,n n u:n n"),
    "QGemm": _node(f"u:m,k {_SCALED} u:k,n {_SCALED} j:n {_SCALED}"),
    **_each("QLinearAdd QLinearMul", _node(f"u:a,b {_SCALED} u:b {_SCALED} {_SCALED}")),
    **_each("QLinearLeakyRelu QLinearSigmoid", _node(f"u:a,b {_SCALED} {_SCALED}")),
    "QLinearSoftmax": _node(f"u:a,b {_SCALED} {_SCALED}", opset=13),
    "QLinearWhere": _node(f"b:a,1 u:a,b {_SCALED} u:b {_SCALED} {_SCALED}"),
    "MatMulNBits": _node("m,32 u:8,2,8 16", K=32, N=8, bits=4, block_size=16),
    "SimplifiedLayerNormalization": _node("a,b,d d"),
    "SkipLayerNormalization": _node("a,b,d a,b,d d d"),
    "SkipSimplifiedLayerNormalization": _node("a,b,d a,b,d d"),
    "QuantizeLinear": _node(f"a,b {_SCALED}"),
    "DequantizeLinear": _node(f"u:a,b {_SCALED}"),
    "Attention": _node("b,s,64 64,192 192 j:b,s", **_HEADS),
    "MultiHeadAttention": _node("b,q,d b,k,d b,k,d", **_HEADS),
    "EmbedLayerNormalization": _node("j:b,s j:b,s v,d p,d t,d d d"),
    **_each("MoE QMoE", _node("t,d t,e", k=1)),
    "MoEGroupRouter": _node("t,e e", top_k=1),
    "RotaryEmbedding": _node("b,s,d i:b,s p,e p,e", **_HEADS),
}

SPECIMENS: dict[tuple[str, str], Specimen] = {
    (DOMAIN, CHOOSE): _node("b:. a,b a,b"),
    **{("", op): s for op, s in STANDARD.items()},
    **{(MICROSOFT, op): s for op, s in FUSED.items()},
}


def specimen_model(domain: str, op: str, opset: int) -> onnx.ModelProto:
    """The specimen of an operator as a one-node model with operands x0, x1, .. and outputs y0, ...

    Args:
        domain: Operator domain.
        op: Operator type.
        opset: Version of the standard operator set.
    """
    specimen = SPECIMENS[domain, op]
    names, inputs, constants = [], [], []
    for i, word in enumerate(specimen.operands.split()):
        names.append("" if word == "-" else f"x{i}")
        if word.startswith("="):
            constants.append(numpy_helper.from_array(_constant(word[1:]), names[i]))
        elif names[i]:
            dtype, _, extents = word.rpartition(":")
            dims = [int(e) if e.isdigit() else e for e in extents.split(",") if e != "."]
            inputs.append(helper.make_tensor_value_info(names[i], TYPES[dtype or "f"], dims))
    outputs = [f"y{k}" for k in range(specimen.outputs)]
    node = helper.make_node(op, names, outputs, name="node", domain=domain, **specimen.attributes)
    results = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph([node], "specimen", inputs, results, constants)
    opsets = [helper.make_opsetid("", opset)]
    opsets += [helper.make_opsetid(domain, 1)] if domain else []
    functions = [ir.to_proto(choice_function(opset))] if domain == DOMAIN else []
    return helper.make_model(graph, opset_imports=opsets, functions=functions)


def _constant(text: str) -> Any:
    """`1,2` a vector, `s1` a scalar, both int64; `f1,2` and `e1` the same in float32."""
    kind = text[0] if text[0].isalpha() else ""
    numbers = [int(n) for n in text.removeprefix(kind).split(",")]
    dtype = np.float32 if kind in ("e", "f") else np.int64
    return np.array(numbers[0] if kind in ("e", "s") else numbers, dtype)
