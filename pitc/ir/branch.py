"""Branches of If nodes in a flat graph.

While a model is compiled, the nodes of both branches of an If stand in the main graph, and each
output of the If is a choice between their results (`pitc.passes.control.branches`):

    y = Choose(condition, then, else)

Choose is a model function around a small If, so the flat graph is an ordinary one. What it forgets
stands in metadata: which branch a node came from, and which choices belong to one If.
"""

from collections.abc import Iterable

import onnx_ir as ir

DOMAIN, CHOOSE = "pitc", "Choose"
# metadata of nodes: the branch; of choices: the If that they are of, by number and by name
BRANCH, GROUP, NAME = "pitc.branch", "pitc.if", "pitc.name"
SIDES = ("then", "else")  # operands 1 and 2 of a choice
BODIES = ("then_branch", "else_branch")

Path = tuple[tuple[str, str], ...]  # from the outermost branch inwards: (If, side)


def is_choice(node: ir.Node) -> bool:
    """True for a choice between the results of two branches."""
    return node.domain == DOMAIN and node.op_type == CHOOSE


def choice_function(version: int) -> ir.Function:
    """Choose(condition, a, b) = If(condition) { a } { b }.

    Args:
        version: Version of the standard operator set.
    """
    condition, *operands = (ir.val(name) for name in ("condition", *SIDES))
    branches = {}
    for attribute, operand in zip(BODIES, operands, strict=True):
        same = ir.node("Identity", [operand], outputs=[ir.val(f"{operand.name}_result")])
        branches[attribute] = ir.Graph([], same.outputs, nodes=[same], name=attribute)
    node = ir.node("If", [condition], branches, outputs=[ir.val("chosen")])
    inputs, opsets = [condition, *operands], {"": version}
    body = ir.Graph(inputs, node.outputs, nodes=[node], opset_imports=opsets, name=CHOOSE)
    return ir.Function(DOMAIN, CHOOSE, graph=body, attributes={})


def groups(nodes: Iterable[ir.Node]) -> dict[str, list[ir.Node]]:
    """The choices of each If, in order."""
    found: dict[str, list[ir.Node]] = {}
    for node in nodes:
        if is_choice(node):
            found.setdefault(node.metadata_props.get(GROUP, ""), []).append(node)
    return found


def numbers_in(node: ir.Node) -> list[int]:
    """Numbers of the Ifs that a node's metadata mentions."""
    steps = node.metadata_props.get(BRANCH, "").split("/")
    texts = [step.rpartition(".")[0] for step in steps] + [node.metadata_props.get(GROUP, "")]
    return [int(text) for text in texts if text]


def path_of(node: ir.Node, known: Iterable[str]) -> Path | None:
    """The branch that a node stands in.

    Args:
        node: A node of a flat graph.
        known: The Ifs that still have choices; the others were decided, so their branches are none.

    Returns:
        The path, empty for the main graph; None for a node that was added later.
    """
    text = node.metadata_props.get(BRANCH)
    if text is None:
        return None
    steps = (step.rpartition(".") for step in text.split("/") if step)
    return tuple((group, side) for group, _, side in steps if group in known)


def within(inner: Path, outer: Path) -> bool:
    """True when a path is another one or lies inside it."""
    return inner[: len(outer)] == outer


def common(a: Path, b: Path) -> Path:
    """The innermost branch that holds two."""
    length = next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    return a[: min(len(a), len(b)) if length is None else length]
