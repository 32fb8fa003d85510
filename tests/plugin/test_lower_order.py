"""The order of nodes in a lowered graph: what the lowering adds runs late, and stays behind what it
reads.
"""

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from pitc.passes.lower.order import place_early
from tests.lower_support import lower

SWITCH = Path(__file__).parents[2] / "models/export/fixtures/switch-eager-traced.onnx"

TEXT = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
    g (float[n] x, float[n] y, bool c) => (z) {
        layer0 = Relu (x)
        layer1 = Relu (layer0)
        packed = com.microsoft.EPContext <source = "PitExecutionProvider", ep_cache_context = "">(y)
        either = If (c) <
            then_branch = one () => (a) { a = Relu (layer1) },
            else_branch = other () => (b) { b = Neg (layer1) }
        >
        bias = Add (y, y)
        turned = Neg (bias)
        after = Relu (either)
        sum = Add (after, turned)
        z = Add (sum, packed)
    }"""


def names(graph: ir.Graph) -> list[str]:
    return [node.outputs[0].name or "" for node in graph]


@pytest.mark.parametrize(
    ("made", "order"),
    [
        ([], "layer0 layer1 packed either bias turned after sum z"),
        (["bias", "turned"], "bias turned layer0 layer1 packed either after sum z"),
        (["turned"], "layer0 layer1 packed either bias turned after sum z"),
        (["sum"], "layer0 layer1 packed either bias turned after sum z"),
        # a node of ours with bodies reads `layer1`, too; one of the provider runs where it is
        (["either", "after"], "layer0 layer1 packed either after bias turned sum z"),
        (["packed"], "layer0 layer1 packed either bias turned after sum z"),
    ],
)
def test_what_was_made_stands_right_behind_what_it_reads(made: list[str], order: str) -> None:
    graph = ir.from_proto(onnx.parser.parse_model(TEXT)).graph
    place_early(graph, [n for n in graph if n.outputs[0].name in made])
    assert names(graph) == order.split()


def test_a_bias_of_the_second_layer_is_added_up_behind_the_first() -> None:
    """Numbers in front of the first layer's run after it: else both layers' scores are kept."""
    graph = lower(onnx.load(SWITCH)).model.graph
    place = {node.name: k for k, node in enumerate(graph)}
    (attention,) = (n for n in graph if n.name and n.name.endswith("[packed attention]"))
    (bias,) = (
        x.producer()
        for x in attention.inputs
        if x is not None and str(x.name).startswith("pitc.add")
    )
    assert bias is not None
    assert place[bias.name] < place["/model/encoder/block.0/layer.0/SelfAttention/Softmax"]
