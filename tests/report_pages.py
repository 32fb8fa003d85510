"""Reports for tests of the page: a model with every kind of node, hostile names, and evidence."""

import random
import re
from collections.abc import Sequence
from html.parser import HTMLParser

from pitc.ir.refusal import Code, Refusal
from pitc.ir.report import KernelRecord, NodeRecord, RegionRecord, Report, Suggestion
from pitc.measure.bench import Race, Timing
from pitc.measure.profile import NodeTime, Profile
from pitc.measure.timing import spread
from pitc.measure.trace import contractions
from pitc.measure.trace_channels import ChannelDecision, convolutions
from pitc.measure.trace_lines import Candidate, Decision
from pitc.report.evidence import Evidence

HOSTILE = "<script>alert('x')</script>\"'&amp;{{ 7 * 7 }}</title><img src=http://x/y>"
LONG = "/model/encoder/layer.11/attention/self/" + "averylongnamewithoutanybreak" * 4 + "/MatMul"
LAYERS = 6
VOID = {"meta", "link", "br", "input", "wbr", "img"}


def model(layers: int = LAYERS, kind: str = "cpu") -> Report:
    """Layers of products; the first node has a hostile name, the second a long one."""
    nodes = [
        NodeRecord(HOSTILE, "Cast", refusal=Refusal(Code.NO_GAIN, "x", f"<b>{HOSTILE}"), flops=9),
        NodeRecord(LONG, "my.domain::Odd", refusal=Refusal(Code.NO_RULE, "y", "odd"), flops=None),
    ]
    for layer in range(layers):
        at = f"/model/layer.{layer}/"
        kernel = KernelRecord("gemm", ("v4:6x64", "v3:6x16"), ("row 1x1", "tile8 8x1"))
        ours = {"engine": "cpu", "kernel": kernel}
        product, ffn = f"{at}q/MatMul", f"{at}fc/Gemm"
        inner = {"engine": "", "reads": (1,)}
        nothing = Refusal(Code.NO_FACT, "z", "every part of it is read")
        fill = ("0.0 where attention_mask[i0, i1] == 0",)
        zero = {"sparse": "operand 0 is 0", "fills": fill}
        nodes += [
            NodeRecord(f"{at}Shape", "Shape", flops=0, reads=(1,)),
            NodeRecord(product, "MatMul", lowering="packed", flops=900, reads=(2,), **ours),
            NodeRecord(f"{at}q/Add", "Add", lowering="packed", inside=product, flops=3, **inner),
            NodeRecord(f"{at}Softmax", "Softmax", lowering="folded", inside=ffn, flops=5, **inner),
            NodeRecord(ffn, "Gemm", lowering="contract", flops=1800, reads=(1, 2), **ours, **zero),
            NodeRecord(f"{at}out/Conv", "Conv", refusal=nothing, flops=70, reads=(1,)),
        ]
    return Report(
        model="model<i>.onnx",
        kind=kind,
        target="cpu",
        padding="attention_mask",
        nodes=nodes,
        regions=[RegionRecord("region0", "rows of attention_mask[i, j] == 0", 12, 3072, 512)],
        assumptions=["run-time values are finite"],
        notes=["a note on <b>this</b>"],
        suggestions=[Suggestion("padding", "more nodes would run packed", "--padding mask", 0.4)],
        kernels=["pitc_gemm_v4_6x64_float32_bias_gelu"],
        stages_ms={"import": 12.0, "facts": 340.5},
    )


def evidence() -> Evidence:
    """A race, profiles, memory and a trace of that model."""
    ours, base = [0.010 + 0.0002 * (i % 5) for i in range(20)], [0.031] * 20
    race = Race(cores=(1,), left_out={"openvino": "its answer differs: <b>"})
    for name, ms in (("pitc", ours), ("onnxruntime", base)):
        gain = spread([x / y for x, y in zip(ms, ours, strict=True)])
        rounds = tuple(1e3 * x for x in ms)
        interval = (2.9, 3.05)
        race.timings.append(Timing(name, "1.0", 0.0, gain, interval, spread(rounds), rounds))
    before, after, decisions = [], [], []
    for layer in range(LAYERS):
        at = f"/model/layer.{layer}/"
        before += [
            NodeTime(f"{at}q/MatMul", "MatMul", True, 900.0, 512),
            NodeTime(f"{at}fc/Gemm", "Gemm", True, 2100.0, 1024),
            NodeTime(f"fused {layer}", "FusedGelu", False, 50.0, 64),
        ]
        after += [
            NodeTime(f"{at}q/Add", "PIT", True, 400.0, 256),
            NodeTime(f"{at}fc/Gemm", "PIT", True, 600.0, 512),
            NodeTime("attention_mask [detect]", "PIT", False, 4.0, 64),
        ]
        decisions += [decision(f"{at}fc/Gemm", 10 + (7 * step + layer) % 40) for step in range(150)]
    channels = [ChannelDecision("/conv/Conv", 64, 32, 64, 16, 100, 30, 50, "channels")]
    return Evidence(
        command="pitc bench 'my model.onnx' --report report.html",
        versions={"pitc": "0.0.1"},
        timed="model.onnx: input_ids=4x16",
        live=(33, 64),
        race=race,
        profiles=(Profile(tuple(before), 9), Profile(tuple(after), 9)),
        memory={"onnxruntime": 250_000_000, "pitc": 180_000_000},
        decisions=decisions,
        contractions=contractions(decisions),
        convolutions=convolutions(channels),
    )


def decision(node: str, live: int) -> Decision:
    """Of 4 rows of 64 elements."""
    offered = {"row": Candidate(3.0, ()), "dense": Candidate(9.0, ())}
    counts = {"elements": live}
    return Decision(node, 4, 64, 2, 4, 2, 1, True, counts, offered, "row", 4.0)


def random_model(nodes: int, seed: int) -> Report:
    """Nodes that read any earlier ones, of any kind."""
    rng = random.Random(seed)
    made = []
    for i in range(nodes):
        lowering = rng.choice(["packed", "packed", "contract", "folded", "ordinary"])
        far = rng.choice([1, 2, 9, 90])
        near = {rng.randint(1, min(i, far)) for _ in range(rng.randint(1, 3)) if i}
        refusal = Refusal(Code.NO_GAIN, "x", "y") if lowering == "ordinary" else None
        flops, reads = rng.choice([0, 5, None]), tuple(sorted(near))
        made.append(
            NodeRecord(f"n{i}", "Add", (), (), (), lowering, refusal, flops=flops, reads=reads)
        )
    return Report(nodes=made)


class Parsed(HTMLParser):
    """Elements of a page; every tag has to be closed, in order.

    Attributes:
        elements: Name and attributes of each, in order.
        texts: What is seen between tags.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert not self._open, f"not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), f"<{tag}> has an attribute twice"
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open[-1] == tag, f"</{tag}> closes {self._open[-3:]}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("script", "style", "title"):
            self.texts.append(data)

    def all(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        """Attributes of the elements of a tag that have these ones."""
        return [a for t, a in self.elements if t == tag and attributes.items() <= a.items()]

    @property
    def text(self) -> str:
        """All text, spaces as one."""
        return re.sub(r"\s+", " ", "".join(self.texts))
