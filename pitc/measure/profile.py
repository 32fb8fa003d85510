"""Where the time of a run goes, node by node, as ONNX Runtime's own profiler tells it.

Times are wall time, of each node the least of several runs: other programs only add to it. Nodes of
ONNX Runtime have the graph's names, perhaps with that of a fusion behind; those of PIT nodes are
numbers, which the session's record of who runs what turns into names again.
"""

import json
import re
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pitc.host.placement import RECORD
from pitc.ir.plan import PROVIDERS
from pitc.measure.timing import pinned

if TYPE_CHECKING:
    from pitc.compiled import CompiledModel

RUNS, WARM_UP = 15, 2
#: Operator of a node that pitc's execution provider runs.
PIT = "PIT"
#: What ONNX Runtime's optimisers put behind a name.
_FUSION = re.compile(r"(.+?)(?:/\w+Fusion/?)+")
_FUSED = re.compile(r".*_\d+_(\d+)")
_NODE, _RUN = "_kernel_time", "model_run"
#: What the compiler puts behind the name of a node or of a value.
_OURS = re.compile(r"(.+) \[[^\[\]]+\](?:\.\d+)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class NodeTime:
    """One node as a session runs it.

    Args:
        node: Name in the source graph, where the node is from there; else its own.
        op_type: Its operator; of a PIT node `PIT`.
        known: True where the source graph has a node of that name.
        us: Time in a run, the least of all runs.
        elements: Of its first output.
    """

    node: str
    op_type: str
    known: bool
    us: float
    elements: int


@dataclass(frozen=True, slots=True)
class Profile:
    """Some runs of one session.

    Args:
        nodes: In the order in which they ran.
        runs: How many counted.
    """

    nodes: tuple[NodeTime, ...]
    runs: int


@dataclass(frozen=True, slots=True)
class Change:
    """One node of the source graph before and after; None where a session has no such node: it was
    fused into another one.

    Args:
        before_us: In ONNX Runtime on the source graph.
        after_us: In the compiled model, all nodes that were made for it.
        live: Share of its first output's elements that are computed.
    """

    before_us: float | None = None
    after_us: float | None = None
    live: float | None = None


def changes(before: Profile, after: Profile) -> dict[str, Change]:
    """What became of each node that a session tells of, by name."""
    first, second = _by_name(before), _by_name(after)
    return {
        name: Change(
            sum(n.us for n in first[name]) if name in first else None,
            sum(n.us for n in second[name]) if name in second else None,
            _live(first.get(name, ()), second.get(name, ())),
        )
        for name in dict.fromkeys([*first, *second])
    }


def _by_name(profile: Profile) -> dict[str, list[NodeTime]]:
    found: defaultdict[str, list[NodeTime]] = defaultdict(list)
    for node in profile.nodes:
        if node.known:
            found[node.node].append(node)
    return dict(found)


def _live(before: Sequence[NodeTime], after: Sequence[NodeTime]) -> float | None:
    """Of nodes for one source node the one with fewest elements tells what is computed."""
    if not before or not after or not before[0].elements:
        return None
    share = min(node.elements for node in after) / before[0].elements
    return share if share <= 1 else None


def profiles(
    compiled: "CompiledModel", source: Path, feeds: Mapping[str, np.ndarray]
) -> tuple[Profile, Profile]:
    """Run the source graph and the compiled model in turns, on one thread of one core.

    Args:
        compiled: The compiled model.
        source: Its source graph.
        feeds: The inputs.

    Returns:
        Of ONNX Runtime on the source graph, and of the compiled model.
    """
    from pitc.measure.bench import session_options
    from pitc.session import plain_session

    names = source_names(source)
    with tempfile.TemporaryDirectory(prefix="pitc-profile-") as folder, pinned(1):
        sessions = []
        makers: dict[str, Callable[[Any], Any]] = {
            "source": partial(plain_session, source),
            "compiled": compiled.session,
        }
        for name, make in makers.items():
            options = session_options()
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(folder, name))
            options.add_session_config_entry(RECORD, "1")
            with warnings.catch_warnings():  # whoever compiled it has seen them
                warnings.simplefilter("ignore")
                sessions.append(make(options))
        for _ in range(WARM_UP + RUNS):
            for session in sessions:
                session.run(None, dict(feeds))
        found = [
            read_profile(Path(session.end_profiling()), names, pit_names(session))
            for session in sessions
        ]
    return found[0], found[1]


def source_names(source: Path) -> dict[str, str]:
    """Of each value and node of a graph, the name of the node that reports tell of."""
    import onnx_ir as ir

    from pitc.ir.nodes import node_name, output_names

    found: dict[str, str] = {}
    for node in ir.load(source).graph:
        name = node_name(node)
        found |= dict.fromkeys(output_names(node), name)
        found[name] = name
    return found


def pit_names(session: Any) -> list[str]:
    """Names of a session's PIT nodes in the order of their numbers; empty where ONNX Runtime is too
    old to tell.
    """
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return []
    groups = session.get_provider_graph_assignment_info()
    return [
        node.name for group in groups if group.ep_name in PROVIDERS for node in group.get_nodes()
    ]


def read_profile(path: Path, names: Mapping[str, str], pit: Sequence[str]) -> Profile:
    """Read a profiler's file.

    Args:
        path: The file.
        names: See `source_names`.
        pit: See `pit_names`.
    """
    events = json.loads(path.read_bytes())
    runs = [e for e in events if e.get("name") == _RUN]
    counted = runs[min(WARM_UP, max(len(runs) - 1, 0)) :]
    start = counted[0]["ts"] if counted else 0
    each: defaultdict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith(_NODE) and event["ts"] >= start:
            each[event["name"].removesuffix(_NODE), event["args"].get("op_name", "")].append(event)
    nodes = [_node_time(*key, taken, names, pit, len(counted)) for key, taken in each.items()]
    return Profile(
        nodes=tuple(nodes),
        runs=len(counted),
    )


def _node_time(
    name: str,
    op_type: str,
    taken: Sequence[Mapping[str, Any]],
    names: Mapping[str, str],
    pit: Sequence[str],
    runs: int,
) -> NodeTime:
    """One node; it may run several times in a run, in a loop's body."""
    if taken[0]["args"].get("provider") in PROVIDERS:
        number = _FUSED.fullmatch(op_type)
        place = int(number[1]) if number else len(pit)
        name, op_type = pit[place] if place < len(pit) else f"PIT node {place}", PIT
    source = named(name, names)
    times = len(taken) / max(runs, 1)
    us = min(e["dur"] for e in taken) * times
    return NodeTime(source or name, op_type, source is not None, us, _elements(taken[-1]["args"]))


def named(name: str, names: Mapping[str, str]) -> str | None:
    """The source node of a node of a session, by its name.

    add_16 [pack]    ->    the node that makes add_16
    /fc/Gemm/GemmTransposeFusion/    ->    /fc/Gemm
    """
    if name in names:
        return names[name]
    found = _OURS.fullmatch(name) or _FUSION.fullmatch(name)
    return names.get(found[1]) if found else None


def _elements(args: Mapping[str, Any]) -> int:
    """Of the first output, 0 where it has none."""
    shapes = args.get("output_type_shape") or [{}]
    return next((prod(shape) for shape in shapes[0].values()), 0)
