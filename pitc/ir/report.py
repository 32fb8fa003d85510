"""What the compiler did and why: plain records, made by the passes, shown by `explain`, kept in
the manifest.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from pitc.ir.naming import shortened
from pitc.ir.refusal import Code, Refusal

#: Of a node that computes nothing: they say no more than that.
UNDECIDED = (Code.NO_FACT, Code.NO_GAIN, Code.NOT_NEEDED)


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """The kernels of one lowered node, among which the run time chooses by what it is given.

    Args:
        operation: Of its plan (`docs/plans.md`).
        tiles: Dense tiles: rows x columns of a result; of attention queries x keys. On CPUs with
            the level in front, on GPUs with the engine.
        micro_tiles: Of a contraction that skips zeros: each variant with its micro-tile, rows x k;
            of a sampled product rows x columns of the result.
        predicted: The dense tile that the speed model prefers, by architecture; empty where rows
            are only known when the model runs, and on CPUs, which have one tile.
    """

    operation: str
    tiles: tuple[str, ...] = ()
    micro_tiles: tuple[str, ...] = ()
    predicted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One node of the source graph.

    Args:
        node: Its name, or its first output's name when it has none.
        op_type: Operator, with the domain in front when it is not the default one.
        pit_axes: Its PIT axes, as `o0` (output dimension) or `r0` (reduced axis).
        fills: Fill facts of its outputs, as text.
        dead: Dead facts of its outputs, as text.
        lowering: What became of it: `ordinary`, `packed`, `folded` (it runs inside another one), or
            the operation of pitc that computes it, such as `attention` or `contract`.
        refusal: Why it is ordinary, when it is.
        sparse: Of a contraction that skips zeros or unread channels: what, and where.
        inside: Of a node that runs inside the node of another one, that one.
        engine: What computes it: `onnxruntime`; `cpu`, register tiles; of GPUs `mma`, tensor cores,
            or `simt`, FMA units, or both. Empty where nothing is left to compute, or inside.
        kernel: Its kernels, where they are pitc's.
        flops: Operations at example sizes (`pitc.ir.work`), of a loop's body those of one turn;
            None where its expression does not tell them, or it has none.
        rule: By which rule it runs packed; empty where it does not.
        reads: How many places before it, in the whole list of nodes, those stand whose outputs it
            or its bodies read.
        module: Path of the module that called it, as an exporter of torch tells it; else empty.
        line: The source line, likewise.
    """

    node: str
    op_type: str
    pit_axes: tuple[str, ...] = ()
    fills: tuple[str, ...] = ()
    dead: tuple[str, ...] = ()
    lowering: str = "ordinary"
    refusal: Refusal | None = None
    sparse: str = ""
    inside: str = ""
    engine: str = "onnxruntime"
    kernel: KernelRecord | None = None
    flops: int | None = None
    rule: str = ""
    reads: tuple[int, ...] = ()
    module: str = ""
    line: str = ""

    @property
    def outcome(self) -> str:
        """What became of the node, and where it went."""
        return f"{self.lowering} into {self.inside}" if self.inside else self.lowering

    @property
    def is_plumbing(self) -> bool:
        """True where nothing is computed and nothing was decided: shapes, views, copies."""
        left = self.refusal is None or self.refusal.code in UNDECIDED
        return self.lowering == "ordinary" and self.flops == 0 and left

    @property
    def runs(self) -> str:
        """Engines and tiles for a cell of a table: a line for each engine, micro-tiles, and what is
        predicted.
        """
        if self.kernel is None:
            return self.engine or "-"
        lines = []
        for engine in self.engine.split(", "):
            tiles = [t for t in self.kernel.tiles if t.startswith(engine) or engine == "cpu"]
            lines.append(" ".join([engine, *(t.removeprefix(engine) for t in tiles)]))
        if self.kernel.micro_tiles:
            lines.append(f"micro-tiles: {', '.join(self.kernel.micro_tiles)}")
        return "\n".join([*lines, *(f"predicted: {text}" for text in self.kernel.predicted)])

    @property
    def facts(self) -> tuple[str, ...]:
        """What is known of the node, a line each."""
        facts = (*(f"fill {f}" for f in self.fills), *(f"dead {f}" for f in self.dead))
        return (*facts, f"sparse {self.sparse}") if self.sparse else facts


@dataclass(frozen=True, slots=True)
class RegionRecord:
    """One packed region.

    Args:
        name: Region name, e.g. `region0`.
        domain: What its packed axis ranges over and where it is dead, as text.
        nodes: How many source nodes run packed.
        flops_per_row: Work that one skipped row saves.
        bytes_per_row: Data that SRead and SWrite move per row.
        host_copies: Of its mask from a GPU to the host in a run, each with a wait; regions over one
            domain share it.
    """

    name: str
    domain: str
    nodes: int
    flops_per_row: int
    bytes_per_row: int
    host_copies: int = 0


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What would help, found by analysing the model with it, or from a fact of its graph.

    Args:
        kind: `padding`, or another contract.
        text: One sentence.
        option: What to type; empty where the model itself has to be another one.
        gain: Share of the model's work (0..1) that would run packed or skip zeros beyond what does
            now; None where no analysis can tell.
    """

    kind: str
    text: str
    option: str = ""
    gain: float | None = None


@dataclass(frozen=True, slots=True)
class TokenPlace:
    """Where an output holds tokens of a padding mask.

    Args:
        mask: The mask, as the user writes it.
        batch: The dimension of sequences.
        axis: The dimension that their tokens lie along.
        last: The mask covers a past, too: they are its last ones.
    """

    mask: str
    batch: int
    axis: int
    last: bool = False


@dataclass(frozen=True, slots=True)
class WholeReader:
    """Who reads most of the work that runs whole without a refusal, and leaves no row of it out.

    Args:
        outputs: The outputs of the graph that read every row, each alone, the one of most work
            first; empty where the way to the outputs ends before.
        value: Where it does: the last value of which every row is read.
        node: The node behind which its rows are rows no longer, a pooling or a choice of one; of
            `value` the node that reads it. Empty where there is no such node.
        op_type: Its operator.
        nodes: How many nodes run whole for it.
        flops: Their operations.
        share: Of the model's work, 0..1.
    """

    outputs: tuple[str, ...] = ()
    value: str = ""
    node: str = ""
    op_type: str = ""
    nodes: int = 0
    flops: int = 0
    share: float = 0.0

    @property
    def text(self) -> str:
        """One sentence: every row is read by output 'emb', through 'ReduceL2_3'."""
        node = f"'{shortened(self.node)}'"
        if self.op_type.lower() not in self.node.lower():
            node += f" ({self.op_type})"
        if not self.outputs:
            by = node if self.node else "one of its readers or another"
            return f"every row of '{shortened(self.value)}' is read by {by}"
        first, *more = (f"'{shortened(name)}'" for name in self.outputs)
        through = f", through {node}" if self.node else ""
        comma = "," * bool(through)
        also = f"{comma} and by {len(more)} other outputs" if more else ""
        also = f"{comma} and by output {more[0]}" if len(more) == 1 else also
        return f"every row is read by output {first}{through}{also}"


@dataclass(slots=True)
class Report:
    """Everything `pitc explain` can tell about one compilation for one kind of machine.

    `kind` is that machine, `target` all that was asked for, `precision` that of products.
    `host_copies` counts the masks that are copied from a GPU to the host in a run, where ONNX
    Runtime's CUDA provider runs ordinary nodes. `assumptions` are what the answer rests on; `notes`
    are sentences on what was left as it is although the user asked for it; `suggestions` are what
    would help. `tokens` are the outputs that hold tokens of a padding mask. `whole_reader` says who
    reads what runs whole.

    `cache_hits` counts pieces of machine code that came from the user's cache, `cache_misses` those
    that were made; both are 0 without it. Of CPUs a piece is a kernel at one level; of GPUs the
    host code of a kernel's tiles, and a tile's image for one architecture.
    """

    model: str = ""
    target: str = "cpu"
    kind: str = "cpu"
    padding: str | None = None
    precision: str = "float32"
    nodes: list[NodeRecord] = field(default_factory=list)
    regions: list[RegionRecord] = field(default_factory=list)
    host_copies: int = 0
    assumptions: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    suggestions: list[Suggestion] = field(default_factory=list)
    tokens: dict[str, TokenPlace] = field(default_factory=dict)
    whole_reader: WholeReader | None = None
    kernels: list[str] = field(default_factory=list)
    stages_ms: dict[str, float] = field(default_factory=dict)
    cache_hits: int = 0
    cache_misses: int = 0

    @property
    def changed(self) -> bool:
        """True where some node does not run as it was."""
        return any(record.lowering != "ordinary" for record in self.nodes)

    @property
    def sparse(self) -> dict[str, str]:
        """Of each contraction that skips zeros or unread channels: what, and where."""
        return {record.node: record.sparse for record in self.nodes if record.sparse}

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form; refusals become code, reason, value, hint, and `also` of another form;
        `module` and `line` of nodes are there where they are known; `summary` is added.
        """
        from pitc.ir.summary import summary_of

        out = asdict(self)
        for record, node in zip(out["nodes"], self.nodes, strict=True):
            record["reads"] = " ".join(map(str, node.reads))  # a list takes ten bytes for each
            record["refusal"] = _refused(node.refusal)
            for name in ("module", "line"):  # most files do not tell them
                if not record[name]:
                    del record[name]
        return out | {"summary": asdict(summary_of(self))}


def _refused(refusal: Refusal | None) -> dict[str, Any] | None:
    if refusal is None:
        return None
    code, reason, value = refusal.code, refusal.reason, refusal.value
    told = {"code": code.id, "reason": reason, "value": value, "hint": code.hint}
    return told if refusal.also is None else told | {"also": _refused(refusal.also)}
