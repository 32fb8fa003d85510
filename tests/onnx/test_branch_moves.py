"""If nodes, opened and closed again: node by node, and with the same answers."""

import onnx_ir as ir
import pytest

from pitc.ir.branch import BRANCH, CHOOSE, DOMAIN, GROUP, NAME
from pitc.ir.nodes import bodies
from pitc.passes.control.branches import close_branches, open_branches
from tests.branch_texts import (
    NESTED,
    ONE,
    RESULTS,
    TWO,
    answers,
    lines,
    model_of,
    opened,
    shown,
    value,
)

OPENED = {
    ONE: """
p = Neg(x) in 0.then 'node_Neg_0'
p.2 = Abs(x) in 0.else 'node_Abs_1'
y = Choose(c, p, p.2) in main of 0 '' 'y'
""",
    TWO: """
h = Neg(x) in 0.then 'n'
p = Exp(h) in 0.then 'e'
q = Abs(h) in 0.then 'a'
h.2 = Add(x, one) in 0.else 'n.2'
p.2 = Add(h.2, two) in 0.else 'b'
q.2 = Tanh(h.2) in 0.else 't'
y = Choose(c, p, p.2) in main of 0 'call' 'call.0'
z = Choose(c, q, q.2) in main of 0 'call' 'call.1'
""",
    NESTED: """
h = Neg(x) in 0.then 'h'
s = Exp(h) in 0.then/1.then 's'
s.2 = Abs(x) in 0.then/1.else 't'
p = Choose(d, s, s.2) in 0.then of 1 'p' 'p'
s.3 = Exp(x) in 0.else/2.then 'u'
s.4 = Tanh(x) in 0.else/2.else 'v'
p.2 = Choose(d, s.3, s.4) in 0.else of 2 'q' 'q'
y = Choose(c, p, p.2) in main of 0 'if' 'if'
""",
}
CLOSED = {
    ONE: """
y = If(c)
  then_branch: p
    p = Neg(x) 'node_Neg_0'
  else_branch: p.2
    p.2 = Abs(x) 'node_Abs_1'
""",
    TWO: """
y, z = If(c) 'call'
  then_branch: p, q
    h = Neg(x) 'n'
    p = Exp(h) 'e'
    q = Abs(h) 'a'
  else_branch: p.2, q.2
    h.2 = Add(x, one) 'n.2'
    p.2 = Add(h.2, two) 'b'
    q.2 = Tanh(h.2) 't'
""",
    NESTED: """
y = If(c) 'if'
  then_branch: p
    h = Neg(x) 'h'
    p = If(d) 'p'
      then_branch: s
        s = Exp(h) 's'
      else_branch: s.2
        s.2 = Abs(x) 't'
  else_branch: p.2
    p.2 = If(d) 'q'
      then_branch: s.3
        s.3 = Exp(x) 'u'
      else_branch: s.4
        s.4 = Tanh(x) 'v'
""",
}


@pytest.mark.parametrize("body", OPENED)
def test_opened_and_closed(body: str) -> None:
    model = model_of(body, RESULTS[body])
    wanted, count = answers(model), body.count("If (")
    # of no open model, metadata mean nothing
    model.graph[0].metadata_props.update({BRANCH: "9.then", GROUP: "8", NAME: "old"})
    assert open_branches(model) == count
    assert shown(model) == OPENED[body]
    assert (DOMAIN, CHOOSE, "") in model.functions and model.graph.opset_imports[DOMAIN] == 1
    assert answers(model) == wanted
    assert open_branches(model) == 0
    assert shown(model) == OPENED[body]
    assert close_branches(model) == count
    assert shown(model) == CLOSED[body]
    assert not model.functions and DOMAIN not in model.graph.opset_imports
    assert answers(model) == wanted
    nodes = list(ir.traversal.RecursiveGraphIterator(model.graph))
    assert not any(n.metadata_props for n in nodes)
    readers = {id(u.node) for n in nodes for x in (*n.inputs, *n.outputs) if x for u in x.uses()}
    assert readers <= set(map(id, nodes))
    assert open_branches(model) == count  # and again


def test_without_an_if_nothing_happens() -> None:
    model = model_of("y = Neg (x)")
    model.graph[0].metadata_props[BRANCH] = "9.then"
    assert open_branches(model) == close_branches(model) == 0
    assert shown(model) == "\ny = Neg(x)\n"
    assert not model.functions and DOMAIN not in model.graph.opset_imports


def test_what_is_opened_later_has_numbers_of_its_own() -> None:
    model = opened(NESTED)
    other = model_of(ONE)
    late = other.graph[0]
    other.graph.outputs.clear()
    other.graph.remove(late)
    late.outputs[0].name = "w"
    for body in bodies(late):
        body[0].replace_input_with(0, value(model, "x"))
    late.replace_input_with(0, value(model, "c"))
    model.graph.append(late)
    model.graph.outputs.append(late.outputs[0])
    assert open_branches(model) == 1
    assert list(lines(model.graph))[-3:] == [
        "p.3 = Neg(x) in 3.then 'node_Neg_0'",
        "p.4 = Abs(x) in 3.else 'node_Abs_1'",
        "w = Choose(c, p.3, p.4) in main of 3 '' 'w'",
    ]


@pytest.mark.parametrize(
    ("imports", "version"),
    [({"": 18}, 18), ({}, 1)],
)
def test_a_choice_is_of_the_operator_set_of_the_model(
    imports: dict[str, int], version: int
) -> None:
    model = model_of(ONE)
    model.graph.opset_imports.clear()
    model.graph.opset_imports.update(imports)
    open_branches(model)
    assert model.functions[DOMAIN, CHOOSE, ""].opset_imports[""] == version


def test_of_a_result_that_is_not_wanted_there_is_no_choice() -> None:
    model = model_of(TWO, "z")
    model.graph[0].outputs[0].name = ""
    assert open_branches(model) == 1
    assert list(lines(model.graph))[-1] == "z = Choose(c, q, q.2) in main of 0 'call' 'call.1'"
    assert len(model.graph) == 7
