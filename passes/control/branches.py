"""If nodes: their branches are opened into the main graph, analysed and lowered like all other
nodes there, and closed again.

    y = If(c) { f(x) } { g(x) }      <->      y = Choose(c, f(x), g(x))

The flat graph computes the same as the model wherever both branches are defined; facts are proven
of it. Only closing puts every node back where it runs: a node of a branch into the branch, a node
that was added (SRead, a kernel) into the innermost branch that holds all its readers. So nothing
of the branch that is not taken ever runs. `docs/adr/0007-branches-are-opened.md` has the argument.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from pitc.ir.branch import (
    BODIES,
    BRANCH,
    CHOOSE,
    DOMAIN,
    GROUP,
    NAME,
    SIDES,
    Path,
    choice_function,
    common,
    groups,
    is_choice,
    numbers_in,
    path_of,
    within,
)
from pitc.ir.build import Names, names_of, take_over
from pitc.ir.nodes import captures, is_if, opset_of, output_names
from pitc.passes.control.graft import graft


def open_branches(model: ir.Model) -> int:
    """Move both branches of every If of the main graph into it.

    Returns:
        How many Ifs were opened, nested ones included.
    """
    main, count = model.graph, 0
    if (DOMAIN, CHOOSE, "") not in model.functions:
        _forget(main)
    first = 1 + max((n for node in main for n in numbers_in(node)), default=-1)
    taken = names_of(main, branches=False)
    while found := [n for n in main if is_if(n)]:
        for node in found:
            _open(model, node, str(first + count), taken)
            count += 1
    if count:
        for node in main:
            node.metadata_props.setdefault(BRANCH, "")
        version = opset_of(main)
        main.opset_imports[DOMAIN] = 1
        model.functions[DOMAIN, CHOOSE, ""] = choice_function(version)
    return count


def _forget(main: ir.Graph) -> None:
    for node in ir.traversal.RecursiveGraphIterator(main):
        for key in (BRANCH, GROUP, NAME):
            node.metadata_props.pop(key, None)


def _open(model: ir.Model, node: ir.Node, group: str, taken: Names) -> None:
    here = node.metadata_props.get(BRANCH, "")
    steps = [f"{here}/{group}.{side}" if here else f"{group}.{side}" for side in SIDES]
    results = []
    for step, attribute in zip(steps, BODIES, strict=True):
        moved, values = graft(model, node, node.attributes[attribute].as_graph(), [], taken)
        results.append(values)
        for n in moved:
            n.metadata_props[BRANCH] = step
    for k, output in enumerate(node.outputs):
        if not output.name:
            continue
        name = node.name or output.name
        if len(node.outputs) > 1:
            name = taken.node(f"{name}.{k}")
        operands = [node.inputs[0], *(values[k] for values in results)]
        choice = ir.node(CHOOSE, operands, domain=DOMAIN, name=name)
        choice.metadata_props.update({BRANCH: here, GROUP: group, NAME: node.name or ""})
        model.graph.insert_before(node, choice)
        take_over(output, choice.outputs[0])
    model.graph.remove(node, safe=True)


@dataclass(slots=True)
class _Unit:
    """One node, or all choices of one If: what is placed as a whole.

    Args:
        place: Position of its last node in the flat graph.
        nodes: The nodes.
        group: The If, for choices.
        own: The branch that its nodes came from; None for nodes that were added.
        path: The innermost branch that holds all readers seen so far; None before the first.
        readers: How many edges to readers are left.
        operands: What it reads, and for a choice the side that reads it.
    """

    place: int
    nodes: list[ir.Node] = field(default_factory=list)
    group: str | None = None
    own: Path | None = None
    path: Path | None = None
    readers: int = 0
    operands: list[tuple["_Unit", Path]] = field(default_factory=list)

    def read_from(self, path: Path) -> None:
        self.path = path if self.path is None else common(self.path, path)


def close_branches(model: ir.Model) -> int:
    """Turn choices back into If nodes, each with the nodes that only one of its branches needs.

    Returns:
        How many Ifs were made.
    """
    main = model.graph
    known = groups(main)
    if known:
        order = _placed(_units(main, known))
        taken = names_of(main)
        main.remove(list(main))
        main.extend(_closed(order, taken))
    model.functions.pop((DOMAIN, CHOOSE, ""), None)
    main.opset_imports.pop(DOMAIN, None)
    _forget(main)
    return len(known)


def _units(main: ir.Graph, known: dict[str, list[ir.Node]]) -> list[_Unit]:
    """The units of a flat graph, with their edges."""
    units: list[_Unit] = []
    by_group: dict[str, _Unit] = {}
    made_by: dict[str, _Unit] = {}
    for place, node in enumerate(main):
        group = node.metadata_props.get(GROUP, "") if is_choice(node) else None
        unit = _Unit(place) if group is None else by_group.setdefault(group, _Unit(place))
        if not unit.nodes:
            units.append(unit)
            unit.group, unit.own = group, path_of(node, known)
        unit.nodes.append(node)
        unit.place = place
        made_by |= dict.fromkeys(output_names(node), unit)
    for unit in units:
        for name, step in _reads(unit):
            producer = made_by.get(name)
            if producer is not None:
                unit.operands.append((producer, step))
                producer.readers += 1
    for output in main.outputs:
        if output.name in made_by:
            made_by[output.name].read_from(())
    return units


def _reads(unit: _Unit) -> Iterator[tuple[str, Path]]:
    """Values that are read, and how far inside of the unit's own branch."""
    group = unit.group
    for node in unit.nodes:
        for k, x in enumerate(node.inputs):
            if x is not None:
                yield x.name or "", () if group is None or k == 0 else ((group, SIDES[k - 1]),)
        yield from ((name, ()) for name in captures(node))


def _placed(units: list[_Unit]) -> list[tuple[Path, _Unit]]:
    """Find every unit's branch, readers first; the units in topological order."""
    ready = [(-u.place, u) for u in units if not u.readers]
    heapq.heapify(ready)
    order: list[tuple[Path, _Unit]] = []
    while ready:
        _, unit = heapq.heappop(ready)
        path = unit.path or () if unit.own is None else unit.own
        if unit.path is not None and not within(unit.path, path):
            raise ValueError(f"{unit.nodes[0].name} is read outside of its branch")
        order.append((path, unit))
        for producer, step in unit.operands:
            producer.read_from((*path, *step))
            producer.readers -= 1
            if not producer.readers:
                heapq.heappush(ready, (-producer.place, producer))
    if len(order) < len(units):
        raise ValueError("an If reads what is computed from it")
    return order[::-1]


def _closed(order: Sequence[tuple[Path, _Unit]], taken: Names) -> list[ir.Node]:
    """The nodes of the main graph, choices as If nodes with bodies."""
    nodes: dict[Path, list[ir.Node]] = {}
    # a branch is complete before the choice that reads it comes
    for path, unit in order:
        here = nodes.setdefault(path, [])
        if unit.group is None:
            here += unit.nodes
        else:
            inside = [nodes.pop((*path, (unit.group, side)), []) for side in SIDES]
            here.append(_if_node(unit.nodes, inside, taken))
    return nodes[()]


def _if_node(choices: Sequence[ir.Node], inside: Sequence[list[ir.Node]], taken: Names) -> ir.Node:
    """One If for all its choices."""
    branches = {}
    for k, (attribute, nodes) in enumerate(zip(BODIES, inside, strict=True), 1):
        own = {id(o) for n in nodes for o in n.outputs}
        results: list[ir.Value] = []
        for choice in choices:
            value = choice.inputs[k]
            assert value is not None
            if id(value) not in own or any(value is x for x in results):
                same = ir.node("Identity", [value])
                same.outputs[0].name = taken.value(f"{choice.outputs[0].name}.{SIDES[k - 1]}")
                same.outputs[0].type, same.outputs[0].shape = value.type, value.shape
                nodes.append(same)
                value = same.outputs[0]
            results.append(value)
        branches[attribute] = ir.Graph([], results, nodes=nodes, name=attribute)
    name = choices[0].metadata_props.get(NAME)
    made = ir.node("If", [choices[0].inputs[0]], branches, num_outputs=len(choices), name=name)
    for choice, output in zip(choices, made.outputs, strict=True):
        take_over(choice.outputs[0], output)
        for k in range(len(choice.inputs)):
            choice.replace_input_with(k, None)
    return made
