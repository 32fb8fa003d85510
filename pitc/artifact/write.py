"""The files of one artifact, written into a folder that exists."""

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from pitc.artifact.manifest import (
    FALLBACK,
    GRAPHS,
    KERNELS,
    MANIFEST,
    SCHEMA,
    WEIGHTS,
    FileRecord,
    Kernels,
    Manifest,
    Options,
    Source,
    file_record,
    report_to_dict,
)
from pitc.host.machine import builder_versions
from pitc.ir.nodes import is_pit_node
from pitc.ir.plan import PLAN_VERSION, stamped
from pitc.ir.report import Report
from pitc.options import Kind, Targets


def write_artifact(
    folder: Path,
    *,
    compiled: Mapping[Kind, ir.Model],
    fallback: ir.Model,
    weights: FileRecord,
    source: Source,
    options: Options,
    targets: Targets,
    symbols: Sequence[str],
    identity: str,
    reports: Mapping[Kind, Report],
) -> Manifest:
    """Write all graphs and the manifest.

    Args:
        folder: A folder with `weights.bin`, and with `kernels.so` when PIT nodes of the compiled
            graph need kernels.
        compiled: The lowered graph of each kind of machine, its large initializers in
            `weights.bin`.
        fallback: The source graph, for machines that cannot run the kernels; its likewise.
        weights: Size and checksum of `weights.bin`.
        source: Name and checksum of the source model.
        options: The user's options.
        targets: What it is compiled for.
        symbols: Base symbols in `kernels.so`.
        identity: That of `kernels.so`, which plans of compiled graphs get; "" without kernels.
        reports: What the passes did for each kind of machine.

    Returns:
        The manifest as written.
    """
    for model in compiled.values():
        stamp_plans(model, identity)
    records = {WEIGHTS: weights}
    graphs = {GRAPHS[kind]: model for kind, model in compiled.items()}
    for name, model in (graphs | {FALLBACK: fallback}).items():
        proto = ir.to_proto(model)
        (folder / name).write_bytes(proto.SerializeToString(deterministic=True))
        records[name] = file_record(folder / name)
    kernels = None
    if (folder / KERNELS).exists():
        records[KERNELS] = file_record(folder / KERNELS)
        kernels = Kernels(
            system=platform.system(),
            machine="aarch64" if "neon" in targets.levels else platform.machine(),
            levels=list(targets.levels),
            archs=list(targets.archs),
            symbols=list(symbols),
        )
    pit_nodes = max(map(count_pit_nodes, compiled.values()))
    manifest = Manifest(
        schema_version=SCHEMA,
        versions=builder_versions(),
        source=source,
        options=options,
        pit_nodes=pit_nodes,
        plan_version=PLAN_VERSION if pit_nodes else None,
        kernels=kernels,
        files=records,
        reports={kind: report_to_dict(report) for kind, report in reports.items()},
    )
    (folder / MANIFEST).write_text(manifest.text(), "utf-8")
    return manifest


def stamp_plans(model: ir.Model, identity: str) -> None:
    """Write the identity of their kernel library into the plans of a graph.

    Whoever loads the graph refuses a library of another build: its symbols may be the same.
    """
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if is_pit_node(node):
            text = stamped(node.attributes["ep_cache_context"].as_string(), identity)
            node.attributes["ep_cache_context"] = ir.AttrString("ep_cache_context", text)


def count_pit_nodes(model: ir.Model) -> int:
    """How many nodes of a graph run in pitc's execution provider."""
    return sum(is_pit_node(node) for node in ir.traversal.RecursiveGraphIterator(model.graph))
