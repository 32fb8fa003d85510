"""Names of nodes in compiled graphs, what their metadata says, and dumps of every stage."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from models.bert import BertConfig, bert
from pitc.ir.metadata import AXES, FACTS, REFUSAL, RULE, SOURCE, VALUE
from pitc.ir.naming import common_prefix, shortened
from pitc.passes import STAGES
from pitc.passes.pipeline import Lowered, LowerOptions, run_passes
from tests.lower_support import lower
from tests.tile_prices import PRICES

TWO_LAYERS = BertConfig(layers=2, hidden=64, heads=2, ffn=256, vocab=50)
FIXTURES = Path(__file__).parents[2] / "models/export/fixtures"


def encoder() -> onnx.ModelProto:
    return bert(TWO_LAYERS, np.random.default_rng(0))


def told(lowered: Lowered) -> dict[str, dict[str, str]]:
    return {n.name or "": dict(n.metadata_props) for n in lowered.model.graph}


def test_names_tell_the_source_node_and_what_is_done() -> None:
    model = onnx.load(FIXTURES / "bert-eager-traced.onnx")
    lowered = lower(model, "attention_mask")
    names = [n.name or "" for n in lowered.model.graph.all_nodes()]
    assert Counter(names).most_common(1)[0][1] == 1
    source = "/model/encoder/layer.0/attention/self/query/MatMul"
    assert source in {n.name for n in model.graph.node}
    assert f"{source} [packed contract]" in names and source not in names
    assert "attention_mask [detect]" in names and "last_hidden_state [unpack]" in names
    nodes = [n for n in lowered.model.graph if n.op_type == "EPContext"]
    ours = {(n.name or "").rpartition(" [")[0] for n in nodes}
    known = {n.name for n in model.graph.node} | {x for n in model.graph.node for x in n.output}
    assert ours <= known | {i.name for i in model.graph.input}
    values = [o.name or "" for n in lowered.model.graph.all_nodes() for o in n.outputs]
    assert not any("pitc.pitc." in name for name in values)


def test_metadata_says_by_what_rule_and_which_facts() -> None:
    by_name = told(lower(encoder(), "attention_mask"))
    product = by_name["matmul_15 [packed contract]"]
    assert product[SOURCE] == "matmul_15" and product[RULE] == "packed: contraction"
    assert product[AXES] == "o0 o1 o2 r0"
    assert "dead attention_mask[d0, d1] == 0" in product[FACTS].splitlines()
    attention = by_name["matmul_52 [packed attention]"]
    assert attention[RULE].startswith("attention: ")
    assert by_name["input_ids [pack]"] == {VALUE: "input_ids", RULE: "pack"}
    plain = told(lower(encoder()))
    assert plain["layernormalization_14"][REFUSAL].startswith("PIT002: every part of it is read")
    assert not {SOURCE, RULE} & plain["layernormalization_14"].keys()


def test_dumps_tell_what_each_stage_knows_and_change_nothing(tmp_path: Path) -> None:
    def compiled(folder: Path | None) -> bytes:
        options = LowerOptions("attention_mask", folder, PRICES)
        lowered = run_passes(ir.serde.deserialize_model(encoder()), options)
        return ir.serde.serialize_model(lowered.model).SerializeToString(deterministic=True)

    assert compiled(tmp_path) == compiled(None)
    files = [f"{k:02d}_{name}.onnx" for k, name in enumerate(STAGES, 1)]
    assert sorted(p.name for p in tmp_path.glob("*.onnx")) == files
    keys = []
    for file in files:
        nodes = onnx.load(tmp_path / file, load_external_data=False).graph.node
        (found,) = (
            {p.key for p in n.metadata_props} for n in nodes if n.name.split(" ")[0] == "matmul_26"
        )
        keys.append(found)
    assert keys == [set(), {AXES, FACTS}, {AXES, FACTS, RULE}, {AXES, FACTS, RULE, SOURCE}]


def test_what_is_written_takes_little_space() -> None:
    lowered = lower(encoder(), "attention_mask")
    nodes = list(lowered.model.graph.all_nodes())
    text = sum(len(k) + len(v) for n in nodes for k, v in n.metadata_props.items())
    assert text < 400 * len(nodes)


@pytest.mark.parametrize(
    ("name", "longest", "want"),
    [
        ("short", 10, "short"),
        ("/a/b/MatMul", 11, "/a/b/MatMul"),
        (
            "/model/encoder/layer.0/attention/self/query/MatMul",
            32,
            "/../layer.0/../self/query/MatMul",
        ),
        ("/model/encoder/layer.0/attention/self/query/MatMul", 20, "../layer.0/../MatMul"),
        ("/layer.0/a/block.11/b/MatMul", 27, "/layer.0/a/../b/MatMul"),
        ("a_name_without_any_parts", 12, "a_nam..parts"),
        ("/" + "x" * 50 + "/MatMul", 20, "/../MatMul"),
        ("/model/" + "x" * 50, 20, "/model/xx" + ".." + "x" * 9),
    ],
)
def test_short_names(name: str, longest: int, want: str) -> None:
    assert shortened(name, longest) == want
    assert len(want) <= longest


def test_common_prefixes() -> None:
    assert common_prefix(["/m/e/Add", "/m/e/MatMul", "output"]) == "/m/e/"
    assert common_prefix(["/m/e/Add", "/m/ex/Add"]) == "/m/"
    assert common_prefix(["/m/Add", "/n/Add"]) == "/"
    assert common_prefix(["/m/Add"]) == common_prefix(["a", "b"]) == ""
