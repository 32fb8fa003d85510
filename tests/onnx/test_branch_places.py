"""Closing puts what was added to opened branches where it is read, and nowhere else."""

import pytest

from pitc.ir.branch import BRANCH
from pitc.ir.nodes import bodies
from pitc.passes.control.branches import close_branches, open_branches
from tests.branch_texts import (
    NESTED,
    TWO,
    add,
    answers,
    either,
    lines,
    model_of,
    opened,
    read,
    value,
)


def test_what_was_added_runs_where_it_is_read() -> None:
    model = opened(NESTED)
    add(model, "Floor", "x", "i")
    add(model, "Sign", "i", "g", ("s.2", 0))
    add(model, "Cos", "g", "b", ("h", 0))
    add(model, "Sin", "x", "a", ("s", 0))
    add(model, "Erf", "i", "e")
    add(model, "Ceil", "e", "f", ("s.3", 0))
    add(model, "Round", "e", "k", ("s.4", 0))
    add(model, "Tan", "x", "u")
    add(model, "Atan", "u", "v")
    wanted = answers(model)
    assert close_branches(model) == 3
    assert [line.split(" '")[0] for line in lines(model.graph)] == ADDED.strip("\n").splitlines()
    assert answers(model) == wanted


ADDED = """
u = Tan(x)
v = Atan(u)
i = Floor(x)
y = If(c)
  then_branch: p
    g = Sign(i)
    b = Cos(g)
    h = Neg(b)
    p = If(d)
      then_branch: s
        a = Sin(x)
        s = Exp(a)
      else_branch: s.2
        s.2 = Abs(g)
  else_branch: p.2
    e = Erf(i)
    p.2 = If(d)
      then_branch: s.3
        f = Ceil(e)
        s.3 = Exp(f)
      else_branch: s.4
        k = Round(e)
        s.4 = Tanh(k)
"""


def test_conditions_and_second_operands_run_where_they_are_read() -> None:
    model = opened(NESTED)
    add(model, "Not", "d", "f", ("p", 0))
    add(model, "Not", "c", "g", ("y", 0))
    wanted = answers(model)
    close_branches(model)
    assert [line.split(" '")[0] for line in lines(model.graph)][:6] == [
        "g = Not(c)",
        "y = If(g)",
        "  then_branch: p",
        "    f = Not(d)",
        "    h = Neg(x)",
        "    p = If(f)",
    ]
    assert answers(model) == wanted
    model = opened(TWO)
    add(model, "Sin", "x", "a", ("h.2", 1))
    wanted = answers(model)
    close_branches(model)
    assert "  else_branch: p.2, q.2|    a = Sin(x)" in "|".join(lines(model.graph))
    assert answers(model) == wanted


def test_main_nodes_and_outputs_stay() -> None:
    model = model_of("h = Neg (x) y = If (c) " + either("p = Exp (h)", "p = Abs (x)"))
    open_branches(model)
    add(model, "Sin", "x", "a", ("p.2", 0))
    model.graph.outputs.append(value(model, "a"))
    value(model, "a").type, value(model, "a").shape = (
        value(model, "x").type,
        value(model, "x").shape,
    )
    assert value(model, "h").producer().metadata_props == {BRANCH: ""}  # type: ignore[union-attr]
    wanted = answers(model)
    close_branches(model)
    assert [line.split(" '")[0] for line in lines(model.graph)][:3] == [
        "a = Sin(x)",
        "h = Neg(x)",
        "y = If(c)",
    ]
    assert answers(model) == wanted


def test_a_result_of_a_branch_is_computed_there_and_is_no_result_twice() -> None:
    model = opened(TWO)
    for place, name in ((1, "x"), (2, "p.2")):
        read(model, "y", place, name)
    read(model, "z", 2, "p.2")
    wanted = answers(model)
    close_branches(model)
    assert [
        line.split(" '")[0] for line in lines(model.graph) if ":" in line or "Iden" in line
    ] == [
        "  then_branch: y.then, q",
        "    y.then = Identity(x)",
        "  else_branch: p.2, z.else",
        "    z.else = Identity(p.2)",
    ]
    assert answers(model) == wanted
    for body, of in zip(bodies(model.graph[0]), ("y.then", "z.else"), strict=True):
        same = next(o for n in body for o in n.outputs if o.name == of)
        assert (same.type, same.shape) == (value(model, "x").type, value(model, "x").shape)


def test_what_a_loop_reads_runs_outside_of_it() -> None:
    loop = (
        "n = Constant <value_int = 3> () [l] p = Loop <body = b (int64 i, bool go, float[m] s)"
        " => (bool on, float[m] r) { on = Identity (go) r = Add (s, h) }> (n, c, x)"
    )
    model = model_of("y = If (c) " + either(f"h = Neg (x) {loop}", "p = Abs (x)"))
    wanted = answers(model)
    open_branches(model)
    add(model, "Sin", "x", "a", ("h", 0))
    read(model, "h", 0, "x")
    close_branches(model)
    texts = list(lines(model.graph))
    assert [t.split(" '")[0] for t in texts[:5]] == [
        "a = Sin(x)",
        "y = If(c)",
        "  then_branch: p",
        "    h = Neg(x)",
        "    n = Constant()",
    ]
    assert answers(model) == wanted


def test_what_cannot_be_closed_is_refused() -> None:
    model = opened(NESTED)
    read(model, "s.4", 0, "h")  # the other branch
    with pytest.raises(ValueError, match="h is read outside of its branch"):
        close_branches(model)
    model = opened(TWO)
    read(model, "p", 0, "z")
    with pytest.raises(ValueError, match="an If reads what is computed from it"):
        close_branches(model)
