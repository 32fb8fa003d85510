"""ONNX functions for models that are written by hand: their bodies are standard operators, so the
file runs anywhere, and pitc sees through them.
"""

import onnx
import onnx.parser

DOMAIN = "pitc"
_TEXT = """<domain: "pitc", opset_import: ["": {opset}]>
{name} (input, weights, group_indices{inputs}) => (output) {{
    middle = Constant <value_ints = [1, 2]> ()
    two = Constant <value_ints = [2]> ()
    rows = Unsqueeze (input, middle)
    chosen = Gather <axis = 0> (weights, group_indices)
    products = MatMul (rows, chosen)
    {end}
}}"""
_PLAIN = "output = Squeeze (products, two)"
_BIASED = """each = Squeeze (products, two)
    terms = Gather <axis = 0> (bias, group_indices)
    output = Add (each, terms)"""


def grouped_matmul(opset: int = 17, *, bias: bool = False) -> onnx.FunctionProto:
    """Make the ONNX function `pitc::GroupedMatMul`: rows times the matrices that indices name.

        output[m, j, n] = sum over k of input[m, k] * weights[group_indices[m, j], k, n]

    Add it to a model's functions, and `pitc` to its operator sets. Compiled by pitc, each matrix is
    read once for all rows that name it, where it lies. As a plain model it copies a matrix per row.

    Args:
        opset: The model's version of the standard operators: at least 13, and 14 for pitc to group.
        bias: A fourth operand `bias [G, N]`: the row of each group is added to its products. The
            function is called `GroupedMatMulBias` then.

    Returns:
        The function. Its operands: `input [M, K]`, `weights [G, K, N]`, `group_indices [M, J]` of
        integers from -G to G - 1; its result: `[M, J, N]`.

    Source: the operator of this name that is proposed for ai.onnx (onnx/onnx, proposal 10 of 2026).
    """
    end, inputs = (_BIASED, ", bias") if bias else (_PLAIN, "")
    name = "GroupedMatMulBias" if bias else "GroupedMatMul"
    return onnx.parser.parse_function(_TEXT.format(opset=opset, name=name, inputs=inputs, end=end))
