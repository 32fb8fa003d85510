"""What is in an artifact: PIT nodes by operation, and which execution provider runs which node."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pitc.artifact.check import Check
from pitc.artifact.manifest import GRAPHS
from pitc.compiled import CompiledModel
from pitc.errors import MachineError
from pitc.ir.nodes import is_pit_node
from pitc.options import Kind

RECORD = "session.record_ep_graph_assignment_info"
#: An ONNX Runtime that tells.
ONNXRUNTIME_TELLS = "1.31"


@dataclass(frozen=True, slots=True, order=True)
class Placement:
    """One node as it runs.

    Args:
        provider: Execution provider.
        op_type: Operator, with the domain in front when it is not the default one.
        node: Its name; empty when ONNX Runtime made it without one.
    """

    provider: str
    op_type: str
    node: str


def pit_nodes(check: Check) -> dict[Kind, dict[str, int]]:
    """PIT nodes of the compiled graph of each kind of machine, by the operation of their plan.

    Args:
        check: Of an artifact that runs.
    """
    files = check.manifest.files if check.manifest is not None else {}
    kinds: list[Kind] = [k for name in files for k, graph in GRAPHS.items() if graph == name]
    return {kind: _pit_nodes(check.folder / GRAPHS[kind]) for kind in kinds}


def _pit_nodes(graph: Path) -> dict[str, int]:
    import onnx_ir as ir

    counts: Counter[str] = Counter()
    for node in ir.traversal.RecursiveGraphIterator(ir.load(graph).graph):
        if is_pit_node(node):
            lines = node.attributes["ep_cache_context"].as_string().splitlines()
            fields = (line.partition("=") for line in lines)
            counts[next((value for key, _, value in fields if key == "op"), "unknown")] += 1
    return dict(sorted(counts.items()))


def placement(compiled: CompiledModel) -> list[Placement]:
    """Load a compiled model and ask ONNX Runtime who runs what, after its own optimisations.

    Raises:
        MachineError: The installed ONNX Runtime does not tell.
    """
    import onnxruntime

    if not hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info"):
        raise MachineError(
            f"onnxruntime {onnxruntime.__version__} does not tell which provider runs which node",
            hint=f"pip install 'onnxruntime>={ONNXRUNTIME_TELLS}'",
        )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry(RECORD, "1")
    session = compiled.session(options)
    return sorted(
        Placement(
            group.ep_name,
            f"{node.domain}::{node.op_type}" if node.domain else node.op_type,
            node.name,
        )
        for group in session.get_provider_graph_assignment_info()
        for node in group.get_nodes()
    )
