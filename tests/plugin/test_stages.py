"""Every invariant between stages has a wrong twin: a stage that breaks it is found, by name."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from models.graph import GraphBuilder
from pitc.errors import PitcError
from pitc.ir.constant import FillFact, Range
from pitc.ir.graph import Graph
from pitc.ir.index import dim_index, poly, sym
from pitc.ir.region import EVERYWHERE, Region, Test
from pitc.ir.target import Target
from pitc.passes import pipeline
from pitc.passes.audit import stages
from pitc.passes.audit.stages import StageError
from pitc.passes.pipeline import LowerOptions, run_passes
from pitc.passes.regions.choose import Regions
from pitc.passes.regions.domain import all_live
from pitc.passes.regions.form import Form, PackedOperand, WholeOperand
from tests.branch_models import branch
from tests.lower_support import weight

MASK = "mask"


def model() -> ir.Model:
    """Masked rows behind two products, and a choice between two of them."""
    g = GraphBuilder("m", 17)
    x = g.input("x", np.float32, ("b", "s", 64))
    mask = g.input(MASK, np.bool_, ("b", "s"))
    h = g.op(
        "MatMul", g.op("Relu", g.op("MatMul", x, weight(g, "w1", 64, 64))), weight(g, "w2", 64, 64)
    )
    few = g.op("Less", g.size("x", 1), g.const(4, np.int64))
    h = branch(g, few, lambda b: b.op("Neg", h), lambda b: b.op("Tanh", h))
    wide = g.op("Cast", g.op("Unsqueeze", mask, g.ints(2)), to=1)
    g.output(
        g.op("ReduceSum", g.op("Mul", h, wide), g.ints(1), keepdims=0), "y", np.float32, ("b", 64)
    )
    return ir.from_proto(g.model())


def lower() -> None:
    run_passes(model(), LowerOptions(check=True))


def named(graph: Graph, op_type: str) -> str:
    return next(n.outputs[0].name or "" for n in graph.nodes if n.op_type == op_type)


def main_node(m: ir.Model, op_type: str) -> ir.Node:
    return next(n for n in m.graph if n.op_type == op_type)


def test_what_is_right_passes() -> None:
    lower()


def test_users_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A violation is a bug, not an error of the user's; without the option nothing is checked."""
    assert not issubclass(StageError, PitcError)
    monkeypatch.setattr(stages, "ALWAYS", False)
    monkeypatch.setattr(stages, "wrong_facts", lambda graph: iter(["x is wrong"]))
    run_passes(model(), LowerOptions())
    with pytest.raises(StageError, match="after facts: x is wrong"):
        lower()


def test_a_fault_of_the_source_is_none_of_a_stage() -> None:
    faulty = model()
    main_node(faulty, "Relu").attributes["to"] = ir.AttrInt64("to", 1)
    run_passes(faulty, LowerOptions(check=True))


def test_the_command_has_the_option(
    run: Callable[..., tuple[int, str, str]], mlp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = mlp_path.with_name("out.pitc")
    assert run("compile", mlp_path, "-o", folder, "--check")[0] == 0
    monkeypatch.setattr(stages, "wrong_facts", lambda graph: iter(["x is wrong"]))
    code, _, err = run("compile", mlp_path, "-o", folder, "--check", "--force")
    assert code == 1 and "after facts: x is wrong" in err


def _two_names(m: ir.Model) -> None:
    main_node(m, "Relu").outputs[0].name = main_node(m, "Tanh").outputs[0].name


def _late(m: ir.Model) -> None:
    node = main_node(m, "Relu")
    m.graph.remove(node)
    m.graph.append(node)


def _no_data(m: ir.Model) -> None:
    next(iter(m.graph.initializers.values())).const_value = None


def _renamed(m: ir.Model) -> None:
    m.graph.outputs[0].name = "z"


def _retyped(m: ir.Model) -> None:
    m.graph.outputs[0].type = ir.TensorType(ir.DataType.DOUBLE)


def _no_import(m: ir.Model) -> None:
    main_node(m, "Relu").domain = "com.example"


def _mixed_types(m: ir.Model) -> None:
    node = main_node(m, "Cast")
    node.attributes["to"] = ir.AttrInt64("to", 11)


def _operands(m: ir.Model) -> None:
    node = main_node(m, "MatMul")
    m.graph.insert_before(node, made := ir.node("Relu", list(node.inputs)))
    made.outputs[0].name = "extra"


def _attribute(m: ir.Model) -> None:
    main_node(m, "Relu").attributes["axis"] = ir.AttrInt64("axis", 1)


def _no_choice(m: ir.Model) -> None:
    main_node(m, "Choose").resize_inputs(2)


def _out_of_branch(m: ir.Model) -> None:
    choice = main_node(m, "Choose")
    choice.replace_input_with(1, choice.inputs[2])


NORMALISED: dict[str, tuple[Callable[[ir.Model], None], str]] = {
    "two values of one name": (_two_names, "is defined twice"),
    "a reader before its operand": (_late, "reads relu_1, which is not defined before it"),
    "a weight without data": (_no_data, "has no data"),
    "an output renamed": (_renamed, "the outputs were"),
    "an output of another type": (_retyped, "y was FLOAT"),
    "a domain that is not imported": (_no_import, "are not imported"),
    "types that do not go together": (_mixed_types, "takes no DOUBLE beside FLOAT"),
    "too many operands": (_operands, "Relu has 2 operands"),
    "an unknown attribute": (_attribute, "attributes .'axis'. too many"),
    "a choice of one": (_no_choice, "is no choice between two values"),
    "a value of the other branch": (_out_of_branch, "of a branch that it is not in"),
}


@pytest.mark.parametrize("what", NORMALISED)
def test_wrong_normalise(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil, text = NORMALISED[what]
    right = pipeline.normalise

    def wrong(m: ir.Model, target: Target) -> None:
        right(m, target)
        spoil(m)

    monkeypatch.setattr(pipeline, "normalise", wrong)
    with pytest.raises(StageError, match=f"after normalise: .*{text}"):
        lower()


def _place(graph: Graph, *index: Any, name: str = MASK) -> Region:
    return Region({Test(name, tuple(map(poly, index)), "nz", False)})


def _says(spoil: Callable[[Graph, str], None]) -> Callable[[Graph], None]:
    return lambda graph: spoil(graph, named(graph, "Relu"))


def _dead(graph: Graph, name: str, r: Region) -> None:
    graph[name].dead = [r]


D0, S = dim_index(0, sym("b")), sym("s")
FACTS: dict[str, tuple[Callable[[Graph], None], str]] = {
    "a value that is not there": (
        _says(lambda g, n: _dead(g, n, _place(g, D0, 0, name="gone"))),
        "there is no value gone",
    ),
    "a fact of nothing": (lambda g: _dead(g, "gone", EVERYWHERE), "there is no such value"),
    "a place too few": (_says(lambda g, n: _dead(g, n, _place(g, D0))), "1 places of a value"),
    "a place beyond the end": (
        _says(lambda g, n: _dead(g, n, _place(g, D0, S + 1))),
        "never a place below s",
    ),
    "a place before the start": (
        _says(lambda g, n: _dead(g, n, _place(g, D0, -1))),
        "never a place below s",
    ),
    "a dimension too many": (
        _says(lambda g, n: _dead(g, n, _place(g, dim_index(7, sym("b")), 0))),
        "dimension 7 of a value of rank 3",
    ),
    "a size that nobody declares": (
        _says(lambda g, n: _dead(g, n, _place(g, D0, sym("q")))),
        "no input has a size q",
    ),
    "an unknown bit": (
        _says(lambda g, n: _dead(g, n, Region(_place(g, D0, 0), 1 << 99))),
        "it rests on bit 99",
    ),
    "a fact that justifies itself": (
        _says(lambda g, n: _dead(g, n, _place(g, D0, 0, 0, name=n))),
        "looks at what is computed from it",
    ),
    "a fact that rests on its value": (
        _says(lambda g, n: _dead(g, n, Region((), g.note_bit(n)))),
        "rests on its own fill facts",
    ),
    "a range of nothing": (
        _says(lambda g, n: setattr(g[n], "fills", [FillFact(EVERYWHERE, Range(1.0, 0.0))])),
        "is empty",
    ),
    "no limit": (_says(lambda g, n: setattr(g[n], "slack", ([], float("nan")))), "slack of .*nan"),
    "finite where nothing is": (
        _says(lambda g, n: setattr(g[n], "finite_if", _place(g, D0, 0, name="gone"))),
        "finite_if of .*there is no value gone",
    ),
    "another shape": (
        _says(lambda g, n: setattr(g[n], "shape", (sym("b"), sym("s")))),
        "by its expression",
    ),
    "an integer that is none": (
        _says(lambda g, n: setattr(g[n], "affine", poly(1))),
        "1, of type float32",
    ),
}


@pytest.mark.parametrize("what", FACTS)
def test_wrong_facts(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil, text = FACTS[what]
    right = pipeline.analysis

    def wrong(m: ir.Model, *options: Any) -> Any:
        known = right(m, *options)
        spoil(known.graph)
        return known

    monkeypatch.setattr(pipeline, "analysis", wrong)
    with pytest.raises(StageError, match=f"after facts: .*{text}"):
        lower()


def _first(regions: Regions, graph: Graph) -> tuple[ir.Node, Form]:
    node = next(n for n in graph.nodes if n in regions.demand.forms)
    return node, regions.forms[node]


def _form(regions: Regions, graph: Graph, **changes: Any) -> None:
    node, form = _first(regions, graph)
    regions.forms[node] = replace(form, **changes)


def _no_form(graph: Graph, regions: Regions) -> None:
    del regions.forms[_first(regions, graph)[0]]


def _other_proof(graph: Graph, regions: Regions) -> None:
    packing = _first(regions, graph)[1].outputs[0]
    assert packing is not None
    _form(regions, graph, outputs=(replace(packing, proof=_place(graph, 0, 0)),))


def _no_proof(graph: Graph, regions: Regions) -> None:
    """Of a value that is wanted whole; others may live elsewhere."""
    node = next(iter(regions.demand.exits.values()))
    form = regions.forms[node]
    proofless = (None if p is None else replace(p, proof=None) for p in form.outputs)
    regions.forms[node] = replace(form, outputs=tuple(proofless))


def _nothing_dead(graph: Graph, regions: Regions) -> None:
    packing = _first(regions, graph)[1].outputs[0]
    assert packing is not None
    domain = all_live(packing.domain.extents)
    _form(regions, graph, outputs=(replace(packing, domain=domain),))


def _weaker_proof(graph: Graph, regions: Regions) -> None:
    packing = _first(regions, graph)[1].outputs[0]
    assert packing is not None
    proof = _place(graph, 0, 0)
    graph[packing.name].dead.append(proof)
    _form(regions, graph, outputs=(replace(packing, proof=proof),))


def _turned(graph: Graph, regions: Regions) -> None:
    packing = _first(regions, graph)[1].outputs[0]
    assert packing is not None
    _form(regions, graph, outputs=(replace(packing, coords=packing.coords[::-1]),))


def _no_operand(graph: Graph, regions: Regions) -> None:
    _form(regions, graph, operands=(WholeOperand("gone"),))


def _nobody_packs(graph: Graph, regions: Regions) -> None:
    """An operand that is a scalar's row: no layout has it."""
    form = _first(regions, graph)[1]
    packed = next(o for o in form.operands if isinstance(o, PackedOperand))
    _form(regions, graph, operands=(replace(packed, name=MASK, coords=packed.coords[:1]),))


def _no_exit(graph: Graph, regions: Regions) -> None:
    regions.demand.exits.clear()


def _rests_on_exit(graph: Graph, regions: Regions) -> None:
    (name,) = regions.demand.exits
    _form(regions, graph, rests_on=(Region((), graph.note_bit(name)),))


REGIONS: dict[str, tuple[Callable[[Graph, Regions], None], str]] = {
    "a node without a form": (_no_form, "has no form"),
    "a proof that is no fact": (_other_proof, "which is no dead fact of it"),
    "no proof": (_no_proof, "has no proof"),
    "a proof where nothing is dead": (_nothing_dead, "in a domain without dead points"),
    "a proof of less": (_weaker_proof, "does not cover its domain"),
    "coordinates in another order": (_turned, "coordinates of extents"),
    "an operand that is not there": (_no_operand, "gone does not exist"),
    "an operand that cannot be gathered": (_nobody_packs, "coordinates of extents"),
    "an exit that is forgotten": (_no_exit, "is wanted whole, and no exit"),
    "a form that rests on what is overwritten": (_rests_on_exit, "overwritten"),
}


@pytest.mark.parametrize("what", REGIONS)
def test_wrong_regions(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil, text = REGIONS[what]
    right = pipeline.choose_regions

    def wrong(graph: Graph, given_up: Any) -> Regions:
        found = right(graph, given_up)
        spoil(graph, found)
        return found

    monkeypatch.setattr(pipeline, "choose_regions", wrong)
    with pytest.raises(StageError, match=f"after regions: .*{text}"):
        lower()


def test_live_points_that_depend_on_packed_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A form for what the mask is computed from."""
    graphs: list[Graph] = []
    right = pipeline.choose_regions

    def wrong(graph: Graph, given_up: Any) -> Regions:
        found = right(graph, given_up)
        graphs.append(graph)
        node = _first(found, graph)[0]
        monkeypatch.setattr(graph, "sources_of", lambda names: {node.outputs[0].name})
        return found

    monkeypatch.setattr(pipeline, "choose_regions", wrong)
    with pytest.raises(StageError, match="live points are computed from"):
        lower()


def _kernel(m: ir.Model, op: str) -> ir.Node:
    nodes = ir.traversal.RecursiveGraphIterator(m.graph)
    return next(n for n in nodes if n.op_type == "EPContext" and f"\nop={op}\n" in _plan(n))


def _plan(node: ir.Node) -> str:
    return node.attributes["ep_cache_context"].as_string()


def _edited(op: str, old: str, new: str) -> Callable[[ir.Model], None]:
    def spoil(m: ir.Model) -> None:
        node = _kernel(m, op)
        assert old in _plan(node)
        text = _plan(node).replace(old, new)
        node.attributes["ep_cache_context"] = ir.AttrString("ep_cache_context", text)

    return spoil


def _unread(m: ir.Model) -> None:
    node = ir.node("Relu", [m.graph.inputs[0]])
    node.outputs[0].name = "unread"
    m.graph.append(node)


def _no_type(m: ir.Model) -> None:
    _kernel(m, "detect").outputs[0].type = None


def _all(m: ir.Model) -> list[ir.Node]:
    return list(ir.traversal.RecursiveGraphIterator(m.graph))


def _other_rows(m: ir.Model) -> None:
    node = next(n for n in _all(m) if n.op_type == "EPContext" and len(n.inputs) > 3)
    detect = _kernel(m, "detect")
    place = list(node.inputs).index(detect.outputs[0])
    node.replace_input_with(place, detect.outputs[2])


def _other_type(m: ir.Model) -> None:
    _kernel(m, "detect").outputs[0].type = ir.TensorType(ir.DataType.FLOAT)


def _no_symbol(m: ir.Model) -> None:
    _kernel(m, "detect").outputs[0].shape = ir.Shape(["t"])


LOWERED: dict[str, tuple[Callable[[ir.Model], None], str]] = {
    "a plan of another version": (_edited("detect", "pitc-plan 9", "pitc-plan 2"), "is no plan"),
    "a field that is no number": (
        _edited("detect", "rank=2", "rank: expected a whole number in 1..8, got .two"),
        "rank: expected a whole number in 1..8, got .two",
    ),
    "a field too many": (
        _edited("detect", "rank=2\n", "rank=2\nrows=1\n"),
        "has .'rows'. too many",
    ),
    "an unknown operation": (_edited("detect", "op=detect", "op=guess"), "operation 'guess'"),
    "a kernel that nobody asked for": (
        _edited("contract", "kernels=dense:gather", "kernels=dense:other_gather"),
        "nobody asked for the kernel",
    ),
    "an operand too few": (_edited("contract", "\nbias=0", "\nbias=1"), "operands, not"),
    "a rank that the mask has not": (_edited("detect", "rank=2", "rank=3"), "in rank 3"),
    "a value that nobody reads": (_unread, "gives what nobody reads"),
    "a kernel's result without a type": (_no_type, "has no type or no shape"),
    "the live points of nobody": (_other_rows, "comes from no detector"),
    "rows of floats": (_other_type, "has type FLOAT"),
    "live points without a name": (_no_symbol, "its live points have no name"),
}


@pytest.mark.parametrize("what", LOWERED)
def test_wrong_lowering(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil, text = LOWERED[what]
    right = pipeline.close_branches

    def wrong(m: ir.Model) -> int:
        count = right(m)
        spoil(m)
        return count

    monkeypatch.setattr(pipeline, "close_branches", wrong)
    with pytest.raises(StageError, match=f"after lower: .*{text}"):
        lower()


def test_choices_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "close_branches", lambda m: 0)
    with pytest.raises(StageError, match="is still a choice"):
        lower()
