"""Products on a device as the runtime launches them: one dense kernel, or the whole chain that
finds what is not 0, chooses, lists and multiplies (`runtime/ep/device/listed_product.cc`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.gpu.arrays import empty, part, upload
from benchmarks.gpu.driver import MULTIPROCESSORS, SHARED_BYTES, Array, Device
from benchmarks.gpu.library import CudaLibrary
from pitc.codegen.call import DeviceTensor
from pitc.ir.cuda_target import CUDA_ARCHS, CudaTile
from pitc.ir.cuda_variants import (
    COLUMNS,
    FEATURES,
    GROUP,
    KINDS,
    SEGMENT,
    SUMMED_ROWS,
    TOTALS,
    CudaOffer,
    block_width,
    dense_tiles,
    line_of,
    offers_of,
    tile_time,
)
from pitc.ir.gpu_speed import GpuPrices, clock_table
from pitc.ir.kernel import KernelRequest
from pitc.ir.panels import PANEL_WIDTH, pack_panels, panel_count
from pitc.ir.variants import ITEM_BYTES

Work = Callable[[], None]

SHARED_ROOM = 220 << 10
"""Shared memory of the thread blocks on a multiprocessor of an H100."""
TURN_BLOCKS, BLOCKS_TOGETHER = 2, 8
"""Thread blocks on a multiprocessor: of a contraction, which take tiles in turns, and of others."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Kernels on a device, and what the runtime knows of it."""

    device: Device
    library: CudaLibrary

    @property
    def multiprocessors(self) -> int:
        """How many."""
        return max(1, self.device.attribute(MULTIPROCESSORS))

    @property
    def arch(self) -> str:
        """The newest one in the price tables that is no newer than the device."""
        fitting = [a for a in CUDA_ARCHS.values() if a.number <= self.device.arch]
        return (fitting[-1] if fitting else next(iter(CUDA_ARCHS.values()))).name

    def turns(self, tiles: int, tile: CudaTile | None = None, together: int = TURN_BLOCKS) -> int:
        """Blocks that take tiles in turns: so many on a multiprocessor as it has room for."""
        if tile and together * tile.shared_bytes > SHARED_ROOM:
            together = max(1, SHARED_ROOM // tile.shared_bytes)
        return max(1, min(tiles, self.multiprocessors * together))

    def blocks(self, work: int) -> int:
        """Blocks for so many pieces of other work."""
        return max(1, min(work, self.multiprocessors * BLOCKS_TOGETHER))


@dataclass(frozen=True, slots=True)
class Operands:
    """C[rows] = act(A[rows] W + bias), on a device.

    Args:
        a: `[M, k]`.
        rows: int32 `[T]`, of A; C has a row for each, in order.
        b: Panels of W.
        bias: float32, of all panels.
        rows_c: int32 `[T]`.
        c: `[T, n]`.
        dtype: Of a, b and c.
    """

    a: DeviceTensor
    rows: DeviceTensor
    b: DeviceTensor
    bias: DeviceTensor
    rows_c: DeviceTensor
    c: DeviceTensor
    dtype: str

    @classmethod
    def of(
        cls, device: Device, a: Array, w: Array, dtype: str, rows: Array | None = None
    ) -> "Operands":
        """Upload operands; without a list all rows of A are taken."""
        n = w.shape[1]
        rows = np.arange(len(a), dtype=np.int32) if rows is None else rows.astype(np.int32)
        bias = np.zeros(panel_count(n) * PANEL_WIDTH, np.float32)
        return cls(
            upload(device, a),
            upload(device, rows),
            upload(device, pack_panels(w, a.dtype)),
            upload(device, bias),
            upload(device, np.arange(len(rows), dtype=np.int32)),
            empty(device, (len(rows), n), a.dtype),
            dtype,
        )

    @property
    def sizes(self) -> tuple[int, int, int]:
        """T, k and n."""
        return self.rows.shape[0], self.a.shape[1], self.c.shape[1]

    @property
    def tail(self) -> tuple[DeviceTensor, ...]:
        """What every contraction takes behind its left operand."""
        return self.b, self.bias, self.rows_c, self.c


def dense_tile(machine: Machine, operands: Operands) -> CudaTile:
    """The tile that the runtime takes."""
    t, k, n = operands.sizes
    dtype = operands.dtype
    clocks = dict(clock_table(dtype))[f"clocks_{machine.arch}"]
    assert isinstance(clocks, tuple)

    def time(number: int) -> float:
        sizes = t, k * ITEM_BYTES[dtype], n
        tile = dense_tiles(dtype)[number]
        return float(tile_time(tile, int(clocks[number]), sizes, machine.multiprocessors))

    return dense_tiles(dtype)[min(range(len(dense_tiles(dtype))), key=time)]


def dense(machine: Machine, operands: Operands, tile: CudaTile, activation: str = "none") -> Work:
    """The dense product alone."""
    _, k, n = operands.sizes
    params = {"k": k, "n": n, "activation": activation, "residual": 0}
    symbol = KernelRequest.of_cuda("gather_gemm", operands.dtype, **params).symbol
    return dense_on(machine.library, machine, operands, tile, f"{symbol}_{tile.name}_cuda")


def dense_on(
    library: CudaLibrary, machine: Machine, operands: Operands, tile: CudaTile, symbol: str
) -> Work:
    """A dense product by a kernel of a library that has the arguments of `gather_gemm`."""
    t, _, n = operands.sizes
    gate = upload(machine.device, np.array([0, t], np.int32))
    turns = machine.turns(-(-t // tile.m) * -(-n // tile.n), tile, max(TURN_BLOCKS, tile.together))
    arguments = (operands.a, operands.rows, *operands.tail, gate, 0, turns)
    return library.bound(symbol, *arguments)


class ListedProduct:
    """The chain of a product: all launches, and parts of it.

    Args:
        machine: Where it runs.
        operands: Of the product.
        forced: A kind of `KINDS` that is chosen whatever it is predicted to take.
    """

    def __init__(self, machine: Machine, operands: Operands, forced: str = "") -> None:
        self._machine, self._operands = machine, operands
        device, dtype = machine.device, operands.dtype
        t, k, n = operands.sizes
        width = block_width(dtype)
        groups, segments, words = -(-t // GROUP), -(-k // SEGMENT), 2 * -(-k // 64)
        blocks = words * 32 // width
        parts = groups * segments
        self._extents = {"tile": groups * k, "block": t * blocks, "square": groups * words}
        self.offered = self._offers(dense_tile(machine, operands))
        table, prices = self._table()
        self._forced = KINDS.index(forced) if forced else -1

        def numbers(count: int, kind: Any = np.int32) -> DeviceTensor:
            return empty(device, (max(count, 1),), kind)

        self.bits = empty(device, (t, words), np.uint32)
        self.counts = numbers(5 * parts + blocks * groups)
        self.gate, self.starts = numbers(2), numbers(groups + 1)
        self.places = numbers(max(parts, blocks * groups) + 1)
        self.trace = numbers(len(TOTALS) + len(self.offered), np.float32)
        each = {"tile": self.offered[1][1], "block": width}
        values = numbers(max(self._extents[kind] * w for kind, w in each.items()), operands.a.dtype)
        index = numbers(max(self._extents.values()))
        count = upload(device, np.array([t], np.int32))
        work = machine.blocks(parts)

        def bound(family: str, suffix: str, *arguments: Any) -> Work:
            params = {"k": k, "n": n, "activation": "none", "residual": 0}
            if family in ("detect", "lists", "choose"):
                params = {} if family == "choose" else {"k": k}
            symbol = KernelRequest.of_cuda(family, dtype, **params).symbol
            return machine.library.bound(f"{symbol}{suffix}_cuda", *arguments)

        left = operands.a, operands.rows
        self.detect = bound("detect", "", *left, count, self.bits, self.counts, work)
        chosen = self.gate, self.places, self.starts, self.trace, t, k, n, self._forced
        self.choose = bound("choose", "", self.counts, count, table, prices, *chosen)
        self.lists = bound(
            "lists",
            f"_h{each['tile']}",
            *(*left, self.bits, self.gate, table, self.places, values, index, work),
        )
        self.products: list[Work] = []
        self._arguments: list[tuple[Any, ...]] = []
        for number, (offer, rows) in enumerate(self.offered):
            kind, tile = offer.variant.kind, offer.tile
            entries = self._extents.get(kind, 0)
            of_a = {
                "dense": left,
                "tile": (part(values, entries, rows), part(index, entries), self.starts),
                "block": (part(values, entries, width), part(index, entries), self.places),
                "square": (*left, part(index, entries), self.starts),
            }[kind]
            suffix = f"_{tile.name}" + (f"_r{rows}" if kind == "block" else "")
            turns = machine.turns(-(-t // rows) * -(-n // tile.n), tile, offer.together)
            self._arguments.append((*of_a, *operands.tail, self.gate, number))
            self.products.append(bound(offer.variant.family, suffix, *self._arguments[-1], turns))

    def in_tile(self, library: CudaLibrary, symbol: str, number: int, tile: CudaTile) -> Work:
        """A product by a kernel of a library, in another dense tile of as many rows."""
        t, _, n = self._operands.sizes
        tiles = -(-t // tile.m) * -(-n // tile.n)
        turns = self._machine.turns(tiles, tile, max(TURN_BLOCKS, tile.together))
        return library.bound(symbol, *self._arguments[number], turns)

    def _offers(self, dense_tile: CudaTile) -> list[tuple[CudaOffer, int]]:
        """One of each kind, as the runtime takes them, and rows of each."""
        t, _, n = self._operands.sizes
        machine, found = self._machine, {}
        most = machine.device.attribute(SHARED_BYTES)
        for offer in offers_of(self._operands.dtype):
            kind, tile = offer.variant.kind, offer.tile
            if tile.engine != "mma" or (kind == "dense" and tile != dense_tile):
                continue
            if kind == "tile" and tile.m < min(t, GROUP):
                continue
            if kind != "block":
                found.setdefault(kind, (offer, tile.m))
                continue
            for rows in SUMMED_ROWS:
                fits = offer.shared_bytes + rows * PANEL_WIDTH * 4 <= most
                fills = -(-t // rows) * panel_count(n) >= machine.multiprocessors
                if fits and (kind not in found or (fills and rows / 2 < t)):
                    found[kind] = (offer, rows)
        return [found[kind] for kind in KINDS]

    def _table(self) -> tuple[DeviceTensor, DeviceTensor]:
        dtype, machine = self._operands.dtype, self._machine
        fields = dict(GpuPrices().table(dtype))
        table = np.zeros((len(self.offered), len(COLUMNS)), np.int32)
        prices = np.zeros((len(self.offered), len(FEATURES)), np.float32)
        for number, (offer, rows) in enumerate(self.offered):
            of_block = rows if offer.variant.kind == "block" else 0
            processors = machine.multiprocessors
            table[number] = line_of(offer.variant, offer.tile, dtype, processors, of_block)
            prices[number] = fields[f"price_{offer.name}_{machine.arch}"]
        return upload(machine.device, table), upload(machine.device, prices)

    def leave(self) -> None:
        """Launch the products that a forced kind leaves idle."""
        for number, product in enumerate(self.products):
            if number != self._forced:
                product()

    def __call__(self) -> None:
        """Launch all of it."""
        self.detect()
        self.choose()
        self.lists()
        for product in self.products:
            product()


def requests(dtype: str) -> list[KernelRequest]:
    """Kernels of the products here, and of all the chain."""
    sizes: dict[str, Any] = {"k": 64, "n": 64, "residual": 0}
    plain = sizes | {"activation": "none"}
    return [
        KernelRequest.of_cuda("pack", "float32"),
        KernelRequest.of_cuda("gather_gemm", dtype, **plain),
        KernelRequest.of_cuda("gather_gemm", dtype, **(sizes | {"activation": "gelu"})),
        KernelRequest.of_cuda("detect", dtype, k=64),
        KernelRequest.of_cuda("choose", dtype),
        KernelRequest.of_cuda("lists", dtype, k=64),
        *(KernelRequest.of_cuda(f"contract_{kind}", dtype, **plain) for kind in KINDS[1:]),
        KernelRequest.of_cuda("attention", dtype, d=64, dv=64, bias=0),
    ]
