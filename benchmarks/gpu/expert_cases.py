"""Products by the matrices of experts that are timed: rows are sorted and multiplied, as the
runtime launches it (`runtime/ep/device/op_grouped.cc`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks.gpu.answers import CHECKED_ROWS, expect, normal
from benchmarks.gpu.arrays import download, empty, upload
from benchmarks.gpu.driver import Array
from benchmarks.gpu.journal import Case, Result, Telling
from benchmarks.gpu.peers import Torch
from benchmarks.gpu.products import TURN_BLOCKS, Machine, Work
from benchmarks.gpu.run import DTYPE, ITEM, OURS, Run
from benchmarks.gpu.timing import Contender, Make, operand_sets
from pitc.codegen.call import DeviceTensor
from pitc.ir.cuda_target import CudaTile
from pitc.ir.cuda_variants import dense_tiles, tile_time
from pitc.ir.gpu_speed import clock_table
from pitc.ir.kernel import KernelRequest
from pitc.ir.panels import PANEL_WIDTH, pack_panels, panel_count

ROWS = KernelRequest.of("group_rows", "int64", "cuda")


@dataclass(frozen=True, slots=True)
class Experts:
    """A product of tokens, each by the matrix of its expert.

    Args:
        count: Experts.
        k: Numbers of a token.
        n: Columns.
        tokens: How many, each of a random expert.
    """

    count: int
    k: int
    n: int
    tokens: int

    @property
    def name(self) -> str:
        """Of its case."""
        return f"experts-e{self.count}-{self.k}x{self.n}-{self.tokens}"


LAYERS = (
    Experts(8, 768, 3072, 4096),
    Experts(64, 512, 1024, 4096),
    Experts(128, 2048, 768, 4096),
    Experts(64, 512, 1024, 64),
)
TINY = (Experts(4, 64, 128, 40),)


def expert_requests() -> list[KernelRequest]:
    """Kernels of the cases here."""
    return [_dense(), ROWS]


def _dense() -> KernelRequest:
    flags: dict[str, Any] = {"activation": "none", "residual": 0, "grouped": 1}
    return KernelRequest.of_cuda("gather_gemm", DTYPE, k=64, n=64, **flags)


def expert_cases(run: Run) -> Iterator[Case]:
    """Layers of experts: many tokens for few experts, few for many."""
    for experts in TINY if run.small else LAYERS:
        flops = 2 * experts.tokens * experts.k * experts.n
        facts = {"dtype": DTYPE, "experts": experts.count, "tokens": experts.tokens, "flops": flops}
        yield Case(experts.name, facts, partial(_timed, run, experts))


def _timed(run: Run, experts: Experts, telling: Telling) -> Result:
    rng = np.random.default_rng(0)
    a, w = normal(rng, experts.tokens, experts.k), normal(rng, experts.count, experts.k, experts.n)
    w *= np.float16(experts.k**-0.5)
    ids = rng.integers(0, experts.count, experts.tokens)
    set_bytes = ITEM * (a.size + w.size + experts.tokens * experts.n)
    sets = operand_sets(run.device, set_bytes)

    def ours() -> Contender:
        made = [grouped(run.machine, a, w, ids) for _ in range(sets)]
        work, c, tile = made[0]
        run.device.fill(c.address, 0xFF, ITEM * experts.tokens * experts.n)
        work()
        error = _error(download(run.device, c), a, w, ids)
        return run.own([work for work, *_ in made], error=error, tile=tile.name)

    makers: dict[str, Make] = {OURS: ours}
    makers |= run.peers(lambda torch: _peers(torch, a, w, ids, sets))
    return run.timed(telling, makers, set_bytes, sets)


def grouped(
    machine: Machine, a: Array, w: Array, ids: Array
) -> tuple[Work, DeviceTensor, CudaTile]:
    """All launches of a product, where its answer will be, and the tile that the runtime takes."""
    (groups, k, n), tokens, device = w.shape, len(a), machine.device
    hit = min(groups, tokens)
    tile = _tile(machine, (tokens, k, n), hit)
    tiles = min(tokens, -(-tokens // tile.m) + hit)

    def ints(count: int) -> DeviceTensor:
        return empty(device, (count,), np.int32)

    group = upload(device, ids.astype(np.int64))
    counts, rows_a, rows_c = ints(groups), ints(tiles * tile.m), ints(tiles * tile.m)
    of_tile, gate = ints(tiles), ints(2)
    c = empty(device, (tokens, n), a.dtype)
    bias = upload(device, np.zeros(panel_count(n) * PANEL_WIDTH, np.float32))
    panels = upload(device, np.concatenate([pack_panels(x, a.dtype) for x in w]))
    blocks = machine.blocks(groups)
    turns = machine.turns(tiles * -(-n // tile.n), tile, max(TURN_BLOCKS, tile.together))
    lists = rows_a, rows_c, of_tile, gate
    bound = machine.library.bound
    works = (
        bound("group_counts_cuda", group, counts, blocks),
        bound("group_rows_cuda", group, counts, *lists, 1, 1, tile.m, blocks),
        bound(
            f"{_dense().symbol}_{tile.name}_cuda",
            *(upload(device, a), rows_a, panels, of_tile, bias, rows_c, c, gate, 0, turns),
        ),
    )

    def work() -> None:
        for launch in works:
            launch()

    return work, c, tile


def _tile(machine: Machine, sizes: tuple[int, int, int], groups: int) -> CudaTile:
    """The dense tile that the runtime takes: of each group the last one is half full."""
    (tokens, k, n), tiles = sizes, dense_tiles(DTYPE)
    clocks = dict(clock_table(DTYPE))[f"clocks_{machine.arch}"]
    assert isinstance(clocks, tuple)

    def time(number: int) -> float:
        tile = tiles[number]
        listed = tokens + groups * (tile.m - 1) // 2
        of = listed, k * ITEM, n
        return float(tile_time(tile, int(clocks[number]), of, machine.multiprocessors))

    return tiles[min(range(len(tiles)), key=time)]


def _error(c: Array, a: Array, w: Array, ids: Array) -> float:
    """Of some rows: norm of the difference over norm."""
    some = np.random.default_rng(5).permutation(len(a))[:CHECKED_ROWS]
    pairs = zip(a[some], ids[some], strict=True)
    want = np.stack([x.astype(np.float64) @ w[e].astype(np.float64) for x, e in pairs])
    error = float(np.linalg.norm(c[some] - want) / np.linalg.norm(want))
    expect("experts", error)
    return error


def _peers(torch: Torch, a: Array, w: Array, ids: Array, sets: int) -> dict[str, Make]:
    """A product for each expert, and torch's grouped one; both are told which rows are whose."""
    t = torch.torch
    order, counts = np.argsort(ids, kind="stable"), np.bincount(ids, minlength=len(w))

    def put() -> tuple[Any, Any]:
        return torch.put(a), torch.put(w)

    def loop() -> Work:
        x, matrices = put()
        parts = [torch.put(part) for part in np.split(order, np.cumsum(counts)[:-1])]
        y = t.empty((len(a), w.shape[2]), dtype=t.float16, device="cuda")

        def work() -> None:
            for e, rows in enumerate(parts):
                if len(rows):
                    y.index_copy_(0, rows, t.mm(x.index_select(0, rows), matrices[e]))

        return work

    def of_all() -> Work:
        x, matrices = put()
        rows = torch.put(order)
        ends = torch.put(np.cumsum(counts).astype(np.int32))
        x, matrices = x.to(t.bfloat16), matrices.to(t.bfloat16)

        def work() -> None:
            t._grouped_mm(x.index_select(0, rows), matrices, ends)

        return work

    def each(one: Any) -> Make:
        return lambda: torch.contender(*(one() for _ in range(sets)))

    return {"torch-loop": each(loop), "torch-grouped": each(of_all)}
