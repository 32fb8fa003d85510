"""What is timed on a GPU, as functions of a run's scale: each gives results for their files."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.gpu.answers import (
    attention_error,
    blocks_of_zeros,
    checked,
    expect,
    free,
    normal,
)
from benchmarks.gpu.arrays import download, empty, part, release, upload
from benchmarks.gpu.driver import Array, Device
from benchmarks.gpu.peers import (
    SPARSE_FROM,
    Torch,
    attention_peers,
    find_torch,
    made,
    product_peers,
)
from benchmarks.gpu.products import ListedProduct, Machine, Operands, Work, dense, dense_tile
from benchmarks.gpu.timing import Contender, time_contenders
from pitc.check.feeds import draw_lengths
from pitc.codegen.call import DeviceTensor
from pitc.ir.cuda_variants import KINDS, TOTALS, dense_tiles
from pitc.ir.gpu_speed import FEMTOSECONDS
from pitc.ir.kernel import KernelRequest

Result = dict[str, Any]
OURS = "pitc"
DTYPE = "float16"

SPMM_GOALS: dict[float, float] = {0.5: 1.3, 0.9: 5, 0.95: 9, 0.99: 20}
"""Times as fast as cuBLAS, by the share of zeros."""
DETECTOR_GOAL = 0.6
"""Of the bandwidth of a copy."""


@dataclass(slots=True)
class Run:
    """What the cases share.

    Args:
        machine: The device and its kernels.
        rounds: Rounds that count.
        small: Sizes for a device that is emulated.
    """

    machine: Machine
    rounds: int = 15
    small: bool = False
    left_out: dict[str, str] = field(default_factory=dict)
    torch: Torch | None = None

    @property
    def device(self) -> Device:
        """The device."""
        return self.machine.device

    def find_peers(self) -> None:
        """Look for PyTorch, once."""
        self.torch = find_torch(self.device, self.left_out)

    def timed(self, contenders: list[Contender], ours: str = OURS) -> Result:
        """Times, and who was left out."""
        left_out = dict(self.left_out)
        times = time_contenders(self.device, contenders, ours, self.rounds, left_out)
        timed = {row["name"] for row in times["contenders"]}  # others, in a case before
        return {**times, "left_out": {n: why for n, why in left_out.items() if n not in timed}}

    def own(self, name: str, work: Work, **facts: Any) -> Contender:
        """A contender of ours."""
        return Contender(name, work, self.device.captured, facts)


def copy_case(run: Run) -> Iterator[Result]:
    """How fast the device copies: the ceiling of what reads and writes memory."""
    size = 1 << (16 if run.small else 30)
    x, y = (empty(run.device, (size,), np.uint8) for _ in range(2))

    def work() -> None:
        run.device.copy(y.address, x.address, size)

    result = run.timed([run.own("copy", work)], "copy")
    us = result["contenders"][0]["us"]
    release(run.device, x, y)
    yield {
        "case": {"name": "copy", "bytes": size},
        **result,
        "gbytes_per_s": 2 * size / us / 1e3,
    }


def gemm_case(run: Run) -> Iterator[Result]:
    """Dense products: every tile, the one that the runtime takes, and cuBLAS."""
    shapes = (
        [(40, 64, 64)] if run.small else [(4096, 4096, 4096), (1280, 768, 3072), (1280, 3072, 768)]
    )
    for t, k, n in shapes:
        rng = np.random.default_rng(0)
        a, w = (normal(rng, *shape) for shape in ((t, k), (k, n)))
        operands = Operands.of(run.device, a, w, DTYPE)
        taken = dense_tile(run.machine, operands)
        works = {tile.name: dense(run.machine, operands, tile) for tile in dense_tiles(DTYPE)}
        errors = {}
        for name, work in works.items():
            errors[name] = checked(run.device, operands, work, a, w)
        own = [run.own(OURS, works[taken.name], tile=taken.name)]
        own += [run.own(name, work) for name, work in works.items()]
        makers = product_peers(run.torch, a, w, 0) if run.torch else {}
        result = run.timed([*own, *made(makers, run.left_out)])
        yield {
            "case": {"name": f"gemm-{t}x{k}x{n}", "dtype": DTYPE, "sizes": [t, k, n]},
            **result,
            "errors": errors,
            "gflop": 2e-9 * t * k * n,
        }
        free(run.device, operands)


def spmm_case(run: Run) -> Iterator[Result]:
    """A product whose left operand holds zeros in blocks: detection included."""
    size = 128 if run.small else 4096
    shares = (0.9,) if run.small else (0.5, 0.9, 0.95, 0.99)
    w = normal(np.random.default_rng(1), size, size)
    for block in ((32, 1), (1, 64), (32, 32)):
        for zeros in shares:
            a = blocks_of_zeros(np.random.default_rng(2), size, block, zeros)
            yield _spmm(run, a, w, block, zeros)


def _spmm(run: Run, a: Array, w: Array, block: tuple[int, int], zeros: float) -> Result:
    operands = Operands.of(run.device, a, w, DTYPE)
    size = len(a)
    product = ListedProduct(run.machine, operands)
    products = {OURS: product}
    products |= {f"{OURS}-{k}": ListedProduct(run.machine, operands, k) for k in KINDS}
    errors = {name: checked(run.device, operands, work, a, w) for name, work in products.items()}
    own = [run.own(name, work) for name, work in products.items()]
    trace, gate = (download(run.device, x) for x in (product.trace, product.gate))
    makers = product_peers(run.torch, a, w, zeros) if run.torch else {}
    result = run.timed([*own, *made(makers, run.left_out)])
    if zeros < SPARSE_FROM:
        result["left_out"]["sparse"] = f"libraries for it compete from {SPARSE_FROM:.0%} zeros on"
    goal = SPMM_GOALS[zeros] if block != (32, 32) else None
    free(run.device, operands)
    item = a.dtype.itemsize
    return {
        "case": {
            "name": f"spmm-{size}-{block[0]}x{block[1]}-{round(100 * zeros)}",
            **{"dtype": DTYPE, "block": list(block), "zeros": zeros, "sizes": [size] * 3},
            "targets": {"cublas": goal},
        },
        **result,
        "errors": errors,
        "zeros": float((a == 0).mean()),
        "chosen": product.offered[int(gate[0])][0].name,
        "predicted_us": [float(x) / FEMTOSECONDS for x in trace[len(TOTALS) :]],
        "least_bytes": item * (a.size + w.size + size * size),
    }


def detector_case(run: Run) -> Iterator[Result]:
    """What the detector, the choice and the lists take, beside a copy of the operand."""
    size = 128 if run.small else 8192
    w = np.zeros((size, 64), np.float16)
    copied = empty(run.device, (size, size), np.float16)
    for zeros in (0.0, 0.9):
        a = blocks_of_zeros(np.random.default_rng(3), size, (32, 1), zeros)
        operands = Operands.of(run.device, a, w, DTYPE)
        product = ListedProduct(run.machine, operands, "tile")
        product()
        live = int((download(run.device, product.trace))[0])
        if live != np.count_nonzero(a):
            raise AssertionError(f"{live} live elements were counted, {np.count_nonzero(a)} are")
        source = operands.a.address

        def copy(source: int = source, size: int = a.nbytes) -> None:
            run.device.copy(copied.address, source, size)

        works = {"copy": copy, "choose": product.choose, "lists": product.lists}
        own = [run.own("detect", product.detect)]
        own += [run.own(name, work) for name, work in works.items()]
        result = run.timed(own, "detect")
        us = {row["name"]: row["us"] for row in result["contenders"]}
        yield {
            "case": {
                "name": f"detector-{size}-{round(100 * zeros)}",
                **{"dtype": DTYPE, "sizes": [size, size], "targets": {"of_copy": DETECTOR_GOAL}},
            },
            **result,
            "read_gbytes_per_s": a.nbytes / us["detect"] / 1e3,
            "of_copy": us["copy"] / us["detect"] / 2,  # a copy also writes
        }
        free(run.device, operands)
    release(run.device, copied)


def attention_case(run: Run) -> Iterator[Result]:
    """Attention over packed sequences of a mean of 40 of 128 tokens, 12 heads of 64."""
    heads, width, longest = (2, 64, 16) if run.small else (12, 64, 128)
    batch = 4 if run.small else 32
    lengths = draw_lengths(np.random.default_rng(0), batch, longest, longest * 40 // 128)
    q, k, v = (normal(np.random.default_rng(s), sum(lengths), heads, width) for s in range(3))
    left = [upload(run.device, x) for x in (q, k, v)]
    work, out = attention(run.machine, left[0], left[1], left[2], lengths)
    work()
    error = attention_error(download(run.device, out), (q, k, v), lengths)
    expect("attention", error)
    makers = attention_peers(run.torch, lengths, longest, heads, width) if run.torch else {}
    result = run.timed([run.own(OURS, work), *made(makers, run.left_out)])
    yield {
        "case": {
            "name": f"attention-{batch}x{longest}-m{longest * 40 // 128}",
            **{"dtype": DTYPE, "heads": heads, "width": width, "tokens": sum(lengths)},
        },
        **result,
        "errors": {OURS: error},
    }


def attention(
    machine: Machine, q: DeviceTensor, k: DeviceTensor, v: DeviceTensor, lengths: list[int]
) -> tuple[Work, DeviceTensor]:
    """Attention over packed sequences, as the runtime launches it, and where its answer will be."""
    rows, heads, width = q.shape
    request = KernelRequest.of_cuda("attention", DTYPE, d=width, dv=width, bias=0)
    ends = upload(machine.device, np.cumsum([0, *lengths]).astype(np.int32))
    gate = upload(machine.device, np.array([0, rows], np.int32))
    out = empty(machine.device, (rows, heads, width), np.float16)
    turns = machine.turns((rows // 64 + len(lengths)) * heads)
    numbers = (float(width**-0.5), 0, 0, 0, 0, 0)
    arguments = (q, k, v, ends, ends, out, *numbers, gate, 0, turns)
    return machine.library.bound(f"{request.symbol}_cuda", *arguments), out


def layer_case(run: Run) -> Iterator[Result]:
    """All products and the attention of a layer of BERT-base, 32 sequences of a mean of 40 tokens.

    Layer norms and residuals are in neither side's time. `torch-padded` computes all 32 x 128
    places, `torch-packed` the live tokens in dense products and in the attention for packed ones.
    """
    hidden, ffn, heads = (64, 128, 1) if run.small else (768, 3072, 12)
    batch, longest = (4, 16) if run.small else (32, 128)
    lengths = draw_lengths(np.random.default_rng(0), batch, longest, longest * 40 // 128)
    tokens, places, width = sum(lengths), batch * longest, hidden // heads
    rng = np.random.default_rng(4)
    shapes = [*[(hidden, hidden)] * 4, (hidden, ffn), (ffn, hidden)]
    weights = [normal(rng, *s) * np.float16(s[0] ** -0.5) for s in shapes]
    x = normal(rng, tokens, hidden)
    works: list[Work] = []
    outputs = []
    errors: dict[str, float] = {}
    for w, activation in zip(weights, ("none",) * 4 + ("gelu", "none"), strict=True):
        inner = x if w.shape[0] == hidden else normal(rng, tokens, ffn)
        operands = Operands.of(run.device, inner, w, DTYPE)
        works.append(dense(run.machine, operands, dense_tile(run.machine, operands), activation))
        error = checked(run.device, operands, works[-1], inner, w, activation)
        errors[f"product-{len(works)}"] = error
        outputs.append(operands.c)
    q, k, v = (part(c, tokens, heads, width) for c in outputs[:3])
    attend, out = attention(run.machine, q, k, v, lengths)
    attend()
    operands_of = tuple(download(run.device, tensor) for tensor in (q, k, v))
    errors["attention"] = attention_error(download(run.device, out), operands_of, lengths)
    expect("attention", errors["attention"])
    works.insert(3, attend)

    def layer() -> None:
        for work in works:
            work()

    makers = {}
    if run.torch:
        torch = run.torch
        for name, rows, names in (
            ("torch-padded", places, ("sdpa-padded",)),
            ("torch-packed", tokens, ("flash-varlen",)),
        ):
            makers[name] = layer_peer(torch, name, rows, weights, lengths, longest, heads, names[0])
    result = run.timed([run.own(OURS, layer), *made(makers, run.left_out)])
    yield {
        "case": {
            "name": f"layer-{batch}x{longest}-m{longest * 40 // 128}",
            **{"dtype": DTYPE, "tokens": tokens, "places": places, "hidden": hidden, "ffn": ffn},
        },
        **result,
        "errors": errors,
    }


def layer_peer(
    torch: Torch,
    name: str,
    rows: int,
    weights: list[Array],
    lengths: list[int],
    longest: int,
    heads: int,
    attends: str,
) -> Callable[[], Contender]:
    """The same in PyTorch, over so many rows, with one of `attention_peers`."""

    def make() -> Contender:
        t = torch.torch
        inputs = {
            w.shape[0]: t.randn((rows, w.shape[0]), dtype=t.float16, device="cuda") for w in weights
        }
        columns = [torch.put(np.ascontiguousarray(w)) for w in weights]
        width = weights[0].shape[1] // heads
        attend = attention_peers(torch, lengths, longest, heads, width)[attends]().work
        gelu = t.nn.functional.gelu

        def work() -> None:
            for number, w in enumerate(columns):
                if number == 3:
                    attend()
                y = t.mm(inputs[w.shape[0]], w)
                if number == 4:
                    gelu(y)

        return torch.contender(name, work)

    return make


CASES: dict[str, Callable[[Run], Iterator[Result]]] = {
    "copy": copy_case,
    "spmm": spmm_case,
    "detector": detector_case,
    "layer": layer_case,
    "attention": attention_case,
    "gemm": gemm_case,
}
"""What is most wanted comes first."""
