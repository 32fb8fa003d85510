"""attention_grad on a multiprocessor: gradients of attention by queries, keys and values, float32.

PIT axes: query and key, both packed; the micro-tile is one row of either. Two kernels, one behind
the other, compute the probabilities anew for each tile (`grad_tiles_cuda`), so nothing of the size
queries x keys is stored, and each sum is that of one thread, in a fixed order:

    queries   a tile of queries goes over keys twice: first for the maximum, the total and the mean
              of each row, then for dq. The numbers of a row are stored: [queries, heads, 4]
    keys      a tile of keys goes over queries, with these numbers, once: dk and dv

Products are chains of multiply-adds in float32, as attention's are with `tf32=0`.

With a formula of pairs tiles go over steps that some row of the tile sees (`sight_cuda`); the
second kernel has the formula with keys for queries. Tiles with the most work come first: the last
queries under a causal mask, and the first keys.
"""

from collections.abc import Mapping
from typing import Any

from pitc.codegen import ptx, tir
from pitc.codegen.engines import ring
from pitc.codegen.engines.attend_grad import NUMBERS, GradientPieces, ThreadGradients
from pitc.codegen.families import pair_tests_cuda
from pitc.codegen.families.grad_sides_cuda import KeyTile, QueryTile
from pitc.codegen.families.grad_tiles_cuda import GradTile, Operands, Side
from pitc.codegen.families.sequences_cuda import Order, Rows, each_tile
from pitc.codegen.tir import Buffer, T
from pitc.ir.attention_tile import TOGETHER, WARPS, GradientTile

MAX_WIDTH = 256
"""Largest head width: it bounds registers and shared memory."""
ROLES = ("queries", "keys")
"""What the two kernels compute the gradients of."""


def attention_grad(name: str, params: Mapping[str, Any], role: str) -> Any:
    """The TIR function of one kernel (arguments: `docs/plans.md`).

    Args:
        name: Its symbol.
        params: `dtype`, `d`, `dv`, `bias`, perhaps `sees`: which keys a query sees.
        role: `queries` or `keys`.

    Raises:
        ValueError: There is no such kernel.
    """
    widths = range(1, MAX_WIDTH + 1)
    known = role in ROLES and params["dtype"] == "float32"
    if not (known and params["d"] in widths and params["dv"] in widths):
        raise ValueError(f"no attention_grad kernel of {role} for {dict(params)}")
    return tir.prim_func(name, lambda: _Kernel(params, of_keys=role == "keys").emit())


class _Kernel:
    """Emits one kernel: its arguments, and the loop over tiles."""

    def __init__(self, params: Mapping[str, Any], *, of_keys: bool) -> None:
        self._of_keys, self._tile = of_keys, GradientTile(params["d"], params["dv"])
        d, dv = params["d"], params["dv"]
        names = ("tq", "tk", "xq", "xk", "xv", "xg", "boundaries", "heads")
        tq, tk, xq, xk, xv, xg, boundaries, heads = (tir.size(name) for name in names)
        q = tir.device_tensor("q", (tq, xq, d), "float32")
        k = tir.device_tensor("k", (tk, xk, d), "float32")
        v = tir.device_tensor("v", (tk, xv, dv), "float32")
        g = tir.device_tensor("g", (tq, xg, dv), "float32")
        offsets = [
            tir.device_tensor(f"{side}_offsets", (boundaries,), "int32") for side in ("q", "k")
        ]
        bias: Buffer | None = None
        positions: list[Buffer | None] = [None, None]
        tests: pair_tests_cuda.Tests | None = None
        if params["bias"]:
            bias = tir.device_tensor("bias", (tir.size("elements"),), "float32")
        if params["bias"] or params.get("sees"):
            positions = [
                tir.device_tensor(name, (rows,), "int32")
                for name, rows in (("qpos", tq), ("kpos", tk))
            ]
        if params.get("sees"):
            tests = pair_tests_cuda.Tests(params["sees"], boundaries - 1, of_keys=of_keys)
        rows = tk if of_keys else tq
        of_d = tir.device_tensor("dk" if of_keys else "dq", (rows, heads, d), "float32")
        of_dv = tir.device_tensor("dv", (tk, heads, dv), "float32") if of_keys else None
        numbers = tir.device_tensor("numbers", (tq, heads, NUMBERS), "float32")
        scale = tir.float_scalar("scale")
        floor = None if of_keys else tir.float_scalar("floor")
        scalars = [] if of_keys else ["zero"]
        scalars += (
            ["bias_sequence", "bias_head", "bias_query", "bias_key"] if bias is not None else []
        )
        at = {name: T.arg(name, T.int32()) for name in scalars}
        self._chosen = tir.device_tensor("gate", (2,), "int32"), T.arg("number", T.int32())
        self._blocks = T.arg("blocks", T.int32())
        strides = at.get("bias_query"), at.get("bias_key")
        queries = Side((q, g), offsets[0], positions[0], strides[0])
        keys = Side((k, v), offsets[1], positions[1], strides[1])
        sides = (keys, queries) if of_keys else (queries, keys)
        self._operands = Operands(
            *sides, bias, tests, (of_d, of_dv), numbers, heads, scale, floor, at
        )

    def emit(self) -> None:
        """Blocks take tiles in turns."""
        tile, operands, of_keys = self._tile, self._operands, self._of_keys
        pieces = GradientPieces.of(tile)
        size = pieces.size(numbers=of_keys)
        looks = 0 if operands.tests is None else operands.tests.places(size, tile.m).size
        with ptx.launch(self._blocks, WARPS * 32, TOGETHER) as (number, thread):
            block = ring.Block(WARPS * 32, thread, ptx.Window(size + looks))
            engine = ThreadGradients(tile, pieces, block, of_keys=of_keys)
            order = Order.FIRST_FIRST if of_keys else Order.LAST_FIRST
            order = Order.ANY if operands.tests is None else order
            side = operands.rows
            rows = Rows(side.offsets, side.tensors[0].shape[0], operands.heads, tile.m, order)
            gate, wanted = self._chosen
            with each_tile(rows, (number, self._blocks), thread, gate[0] == wanted) as at:
                kind: type[GradTile] = KeyTile if of_keys else QueryTile
                kind(operands, engine, block, at).emit()
