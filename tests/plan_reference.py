"""Runs a lowered model without any kernel: ONNX's reference evaluator, PIT nodes by numpy."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, product
from typing import Any
from urllib.parse import unquote

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from pitc.codegen.reference import activate
from pitc.codegen.reference import attention_grad as gradients
from pitc.ir.formula import HALVES, REDUCTIONS, WHOLE, Formula
from pitc.ir.panels import pack_panels
from pitc.ir.plan import PLAN_VERSION
from pitc.passes.rules.record import OPERATORS

Array = np.ndarray


def unpack_panels(panels: Array, n: int) -> Array:
    """The weight `[K, N]` that `pack_panels` stored."""
    k = panels.shape[1]
    return np.ascontiguousarray(panels.transpose(1, 0, 2).reshape(k, -1)[:, :n])


def parse(text: str) -> dict[str, str]:
    """The fields of a plan, and its `kind`: see `kind_of`."""
    first, *lines = text.rstrip("\n").split("\n")
    assert first == f"pitc-plan {PLAN_VERSION}", first
    assert lines == sorted(lines)
    fields = dict(line.split("=", 1) for line in lines)
    return fields | {"kind": kind_of(fields)}


def kind_of(fields: dict[str, str]) -> str:
    """What a contraction does about zeros: `dense` (nothing), `sparse` (it skips those of a),
    `ffn` (of the ReLU of a product in front), `right` (of a computed matrix) or `sampled` (of a
    mask); else the operation.
    """
    if fields["op"] != "contract":
        return fields["op"]
    if fields["tiles"] == "1":
        return "sampled"
    skips = "ffn" if "inner" in fields else "sparse" if fields["right"] == "panels" else "right"
    return skips if fields["skips"] == "1" else "dense"


def number(text: str) -> float:
    return float.fromhex(text) if "x" in text else float(text)


def detect(fields: dict[str, str], live: Array, padding: Array | None = None) -> tuple[Array, ...]:
    assert ("padding" in fields) == (padding is not None)
    assert padding is None or np.isin(padding, (0, 1)).all()
    live = live != 0
    assert live.ndim == int(fields["rank"])
    rows = np.flatnonzero(live).astype(np.int32)
    coords = np.stack(np.nonzero(live)).astype(np.int32)
    counts = live.reshape(int(np.prod(live.shape[:-1])), live.shape[-1]).sum(1)
    return rows, coords, np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def place(codes: list[str], rows: Array, coords: Array) -> tuple[Any, ...]:
    """A numpy index that puts the packed axis first."""
    at = {"0": np.zeros_like(rows), "l": rows, "r": slice(None)}
    at |= {f"c{k}": c for k, c in enumerate(coords)}
    return tuple(at[c] for c in codes)


def packed_first(index: tuple[Any, ...], x: Array) -> Array:
    lead = [k for k, i in enumerate(index) if not isinstance(i, slice)]
    rest = [k for k in range(x.ndim) if k not in lead]
    return x.transpose(lead + rest)[tuple(index[k] for k in lead)]


def sizes(live: Array) -> dict[str, int]:
    """The extent of a dimension by its code in `dims=`."""
    return {"0": 1, "l": live.size} | {f"c{k}": n for k, n in enumerate(live.shape)}


def pack(fields: dict[str, str], x: Array, rows: Array, coords: Array, live: Array) -> tuple[Array]:
    codes = fields["dims"].split(",")
    assert len(codes) == x.ndim and len(coords) == live.ndim, (codes, x.shape, live.shape)
    known = sizes(live)
    assert all(n == known[c] for n, c in zip(x.shape, codes, strict=True) if c != "r")
    return (packed_first(place(codes, rows, coords), x),)


def unpack(
    fields: dict[str, str], packed: Array, rows: Array, coords: Array, live: Array
) -> tuple[Array]:
    codes = fields["dims"].split(",")
    rest = iter(packed.shape[1:])
    size = sizes(live)
    assert len(coords) == live.ndim
    out = np.zeros([next(rest) if c == "r" else size[c] for c in codes], packed.dtype)
    lead = [k for k, c in enumerate(codes) if c != "r"]
    order = lead + [k for k in range(out.ndim) if k not in lead]
    out.transpose(order)[tuple(place(codes, rows, coords)[k] for k in lead)] = packed
    return (out,)


def to_steps(x: Array, fields: dict[str, str], what: str) -> Array:
    """Numbers as ONNX Runtime quantises and dequantises them."""
    step = np.float32(number(fields[f"{what}_step"]))
    below, above = (int(fields.get(f"{what}_{end}", 0)) for end in ("below", "above"))
    return np.clip(np.rint(x / step), -below, above) * step


QUERIES = 32  # of a list of keys
HEAVY = 256  # so many keys more, and twice those of others, are far more


def pairs(fields: dict[str, str], *inputs: Array) -> tuple[Array, ...]:
    """For each 32 queries of a sequence the keys that one of them sees, and which of them do.

    Queries that see far more keys than those beside them are the last ones of their sequence.
    """
    q_offsets, k_offsets, q_coords, k_coords, *left = inputs
    tests = tests_of({kind: int(fields[kind]) for kind in KINDS}, left)
    assert not left
    sizes = [int(fields.get(name, "1")) for name in ("q_block", "k_block")]
    assert len(q_coords) == len(k_coords) == int(fields["rank"])
    keys, seen_by, order = list[int](), list[int](), list[int]()
    tiles = list[tuple[int, int, int]]()
    for s, (q, k) in enumerate(places_of(q_offsets, k_offsets, q_coords, k_coords)):
        visible = seen_by_tests(fields, tests, (s, len(q_offsets) - 1), q, k, sizes)
        rows = heavy_last(visible)
        order += (rows + q_offsets[s]).tolist()
        for part in tiles_of(rows):
            seen = visible[part]
            listed = np.flatnonzero(seen.any(0))
            first = int(listed[0]) if len(listed) else 0
            if seen[:, listed].all() and is_a_row(listed) and is_a_row(part):
                tiles.append((first, len(listed), 0))
                continue
            tiles.append((len(keys), len(listed), 1))
            lanes = np.arange(len(part), dtype=np.uint64)[:, None]
            bits = seen[:, listed].astype(np.uint64) << lanes
            keys += listed.tolist()
            seen_by += bits.sum(0).astype(np.uint32).view(np.int32).tolist()
    ints = (np.array(x, np.int32) for x in (keys, seen_by, tiles, order))
    of_keys, of_queries, of_tiles, of_rows = ints
    return of_keys, of_queries, of_tiles.reshape(-1, 3), of_rows


KINDS: tuple[str, ...] = ("positions", "tables", "keys", "queries", "pairs")
OF_ATTENTION = ("positions", "tables", "key_tests", "query_tests", "pair_tests")
Tests = dict[str, tuple[Array, ...]]


def tests_of(counts: dict[str, int], left: list[Array]) -> Tests:
    """What tests of each kind look at, taken from the operands that are left."""
    found = Tests()
    for kind in (k for k in KINDS if counts[k]):
        found[kind] = tuple(left.pop(0) for _ in range(1 + (kind == "tables")))
        assert {len(x) for x in found[kind]} == {counts[kind]}
    return found


def places_of(
    q_offsets: Array, k_offsets: Array, q_coords: Array, k_coords: Array
) -> Iterator[tuple[Array, Array]]:
    """Positions of the queries and keys of each sequence."""
    for qs, ks in zip(pairwise(q_offsets), pairwise(k_offsets), strict=True):
        yield q_coords[-1, slice(*qs)], k_coords[-1, slice(*ks)]


def seen_by_tests(
    fields: dict[str, str],
    tests: Tests,
    sequence: tuple[int, int],
    q: Array,
    k: Array,
    sizes: Sequence[int] = (1, 1),
) -> Array:
    """Which queries of a sequence, of so many, see which keys: at some positions."""
    (s, sequences), tables = sequence, int(fields["tables"])
    orders = [int(fields["orders"]) >> 2 * n & 3 for n in range(tables)]
    assert sum(order << 2 * n for n, order in enumerate(orders)) == int(fields["orders"])
    holds = []  # of each test, at [query, key]
    for kind, x in tests.items():
        for number, rows in enumerate(zip(*x, strict=True)):
            row, whole = rows[0], (len(q), len(k))
            if kind == "positions":
                x_of_q, y_of_k, z = map(int, row)
                holds.append(x_of_q * q[:, None] + y_of_k * k[None, :] + z >= 0)
                continue
            if kind == "tables":
                sides = (x.reshape(sequences, x.shape[-1])[s] for x in rows)
                mine, other = (x[at] for x, at in zip(sides, (q, k), strict=True))
                compare = (np.equal, np.less, np.less_equal)[orders[number]]
                holds.append(compare(mine[:, None], other[None, :]))
                continue
            extents = row.shape[-2:] if kind == "pairs" else row.shape[-1:]
            count = int(np.prod(row.shape[: -len(extents)]))
            assert count == sequences or row.shape[0] == 1
            live = row.reshape(count, *extents)[s % count] != 0
            blocks = np.ix_(q // sizes[0], k // sizes[1])
            place = {"pairs": blocks, "keys": (None, k), "queries": (q, None)}[kind]
            holds.append(np.broadcast_to(~live[place], whole))
    return truth(list(map(int, fields["program"].split(","))), holds)


def seen_by_program(
    fields: dict[str, str], inputs: tuple[Array, ...]
) -> tuple[tuple[Array, ...], list[Array]]:
    """Operands of attention without what its program looks at, and what that says."""
    counts = dict(zip(KINDS, (int(fields[name]) for name in OF_ATTENTION), strict=True))
    size = sum(n > 0 for n in counts.values()) + (counts["tables"] > 0)
    left = list(inputs[len(inputs) - size :])
    tests, inputs = tests_of(counts, left), inputs[: len(inputs) - size]
    lists = (*inputs[3:5], *inputs[-2:])  # offsets, and coordinates
    sequences = len(inputs[3]) - 1
    return inputs, [
        seen_by_tests(fields, tests, (s, sequences), q, k)
        for s, (q, k) in enumerate(places_of(*lists))
    ]


def seen_of(
    fields: dict[str, str], inputs: tuple[Array, ...]
) -> tuple[tuple[Array, ...], list[Array] | None]:
    """Operands of attention without those that belong to hidden pairs, and what these say."""
    if "program" in fields:
        return seen_by_program(fields, inputs)
    if fields["pairs"] == "0":
        return inputs, None
    return inputs[:-4], seen_pairs(inputs[-4:], inputs[3], inputs[4])


def truth(program: list[int], tests: list[Array]) -> Array:
    """What steps on a stack of truth values leave: 0 joins two by and, 1 by or, 2 turns one, others
    put a test there.
    """
    stack = list[Array]()
    for step in program:
        if step > 2:
            stack.append(tests[step - 3])
        elif step == 2:
            stack.append(~stack.pop())
        else:
            x, y = stack.pop(), stack.pop()
            stack.append(x | y if step else x & y)
    (left,) = stack
    return left


def is_a_row(numbers: Array) -> bool:
    """True for numbers one after the other."""
    return bool((np.diff(numbers) == 1).all())


def tiles_of(rows: Array) -> list[Array]:
    """Rows of queries in the order of the lists, 32 at a time."""
    return [rows[first : first + QUERIES] for first in range(0, len(rows), QUERIES)]


def heavy_last(seen: Array) -> Array:
    """Rows of queries in the order of the lists: those with far more keys last, where that pays."""
    rows, heavy = np.arange(len(seen)), np.zeros(len(seen), bool)
    for part in tiles_of(rows):
        counts, union = seen[part].sum(1), int(seen[part].any(0).sum())
        if union > HEAVY and counts.sum() * 2 < union * QUERIES:
            heavy[part] = counts > 2 * np.sort(counts)[len(part) // 2] + HEAVY
    moved = np.concatenate([rows[~heavy], rows[heavy]])
    before, after = (sum(seen[p].any(0).sum() for p in tiles_of(x)) for x in (rows, moved))
    return moved if after < before else rows


def seen_pairs(lists: tuple[Array, ...], q_offsets: Array, k_offsets: Array) -> list[Array]:
    """Of each sequence, which query sees which key."""
    keys, seen_by, tiles, order = lists
    rows, found = iter(tiles), []
    for s in range(len(q_offsets) - 1):
        queries, many = (int(np.diff(x[s : s + 2])[0]) for x in (q_offsets, k_offsets))
        seen = np.zeros((queries, many), bool)
        of_sequence = order[q_offsets[s] : q_offsets[s + 1]] - q_offsets[s]
        assert np.array_equal(np.sort(of_sequence), np.arange(queries))
        for part in tiles_of(of_sequence):
            begin, count, listed = map(int, next(rows))
            entries = slice(begin, begin + count)
            if not listed:
                seen[part, entries] = True
                continue
            bits = seen_by[entries].view(np.uint32)[None, :] >> np.arange(len(part))[:, None]
            seen[np.ix_(part, keys[entries])] = bits & 1
        found.append(seen)
    assert next(rows, None) is None
    return found


def plane_of_bias(bias: Array, heads: int, sequences: int, s: int, h: int) -> Array:
    """What is added to the scores of a head: [queries or 1, keys or 1]."""
    n, m = bias.shape[:2]
    in_turn = heads == n == 1 and sequences % m == 0
    assert n in (1, sequences) and (m in (1, heads) or in_turn)
    return bias[s if n > 1 else 0, (s if heads == 1 else h) % m]


def attention(fields: dict[str, str], *inputs: Array) -> tuple[Array]:
    q, k, v, q_offsets, k_offsets = inputs[:5]
    inputs, seen = seen_of(fields, inputs)
    sinks = None
    if "sinks" in fields:  # behind the others, but for lists and live points
        at = 5 + 3 * (fields["bias"] == "1") + (fields["whole"] == "1") * (fields["bias"] != "1")
        sinks = inputs[at]
        inputs = (*inputs[:at], *inputs[at + 1 :])
        assert sinks.shape == (int(fields["sinks"]),)
    heads, d, dv = (int(fields[n]) for n in ("heads", "d", "dv"))
    to_zero, keyless_to_zero = (fields[f"{x}_to_zero"] == "1" for x in ("nan", "no_keys"))
    group = int(fields.get("group", "1"))
    counts = heads, heads // group, heads // group
    if fields["whole"] == "1":
        assert all(len(x) == len(k_offsets) - 1 and x.shape[1] == counts[1] for x in (k, v))
        sequence = np.repeat(np.arange(len(k)), np.diff(k_offsets))
        k_coords, live = inputs[-2:]
        assert k.shape[2] == live.shape[-1]
        k, v = (x[sequence, :, k_coords[-1]] for x in (k, v))
    rows, first = (q, k, v), [int(fields[f"{side}_head"]) for side in "qkv"]
    split = [
        x.reshape(x.shape[0], x[:1].size // n if x.size else at + count, n)
        for x, n, at, count in zip(rows, (d, d, dv), first, counts, strict=True)
    ]
    q, k, v = (x[:, at : at + n] for x, at, n in zip(split, first, counts, strict=True))
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    out = np.zeros((q.shape[0], heads, dv), np.float32)
    for s in range(len(q_offsets) - 1):
        qs, ks = slice(*q_offsets[s : s + 2]), slice(*k_offsets[s : s + 2])
        for h in range(heads):
            with np.errstate(all="ignore"):
                x = (q[qs, h].astype(np.float64) @ k[ks, h].T.astype(np.float64)).astype(np.float32)
                x *= np.float32(number(fields["scale"]))
                if "score_cap" in fields:
                    x = np.tanh(x) * np.float32(number(fields["score_cap"]))
                if "score_step" in fields:
                    x = to_steps(x, fields, "score") * np.float32(number(fields["score_scale"]))
                if fields["bias"] == "1":
                    bias, q_coords, k_coords = inputs[5:8]
                    one = plane_of_bias(bias, heads, len(q_offsets) - 1, s, h)
                    at = [c[-1, r] for c, r in ((q_coords, qs), (k_coords, ks))]
                    at = [
                        a if n > 1 else np.zeros_like(a) for a, n in zip(at, one.shape, strict=True)
                    ]
                    x += one[np.ix_(*at)]
                if seen is not None:
                    x = np.where(seen[s], x, np.float32(-np.inf))
                    if fields["no_pairs"] == "mean":
                        x[~seen[s].any(1)] = 0
                if sinks is not None:
                    beside = np.full((len(x), 1), sinks[h if len(sinks) > 1 else 0], np.float32)
                    x = np.concatenate([x, beside], 1)
                e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True, initial=-np.inf))
                p = e / e.sum(1, keepdims=True)
                rounds = "weight_step" in fields
                weights = to_steps(p.astype(np.float32), fields, "weight") if rounds else p
                y = weights[:, : len(v[ks])] @ v[ks, h]
                if not p.shape[1]:
                    y = np.full((x.shape[0], dv), 0.0 if keyless_to_zero else np.nan)
                elif fields["no_pairs"] == "zero" and seen is not None:
                    y[~seen[s].any(1)] = 0
                if to_zero:
                    y = np.where(np.isnan(p.sum(1, keepdims=True)) | (p.shape[1] == 0), 0, y)
                out[qs, h] = y
    return (out,)


def gather_gemm(fields: dict[str, str], a: Array, panels: Array, *rest: Array) -> tuple[Array]:
    k, n = int(fields["k"]), int(fields["n"])
    flag = {name: fields[name] == "1" for name in ("bias", "gather", "residual", "scatter")}
    left = list(rest)
    bias = left.pop(0) if flag["bias"] else np.zeros(n, np.float32)
    residual = left.pop(0).reshape(-1, n) if flag["residual"] else np.float32(0)
    rows = left.pop(0) if flag["gather"] or flag["scatter"] else None
    live = left.pop(0) if rows is not None else None
    assert not left and bias.shape == (n,) and a.shape[-1] == k
    flat = a.reshape(-1, k) if a.size else np.zeros((int(np.prod(a.shape[:-1])), k), np.float32)
    if live is not None and flag["gather"]:
        assert a.shape == (*live.shape, k), (a.shape, live.shape)
    x = flat[rows] if flag["gather"] else flat
    y = x @ unpack_panels(panels, n) + bias
    y = activate(y, fields["activation"]) if y.size else y
    y = (y + residual).astype(np.float32)
    if live is not None and flag["scatter"]:
        out = np.zeros((live.size, n), np.float32)
        out[rows] = y
        return (out.reshape(*live.shape, n),)
    return (y if flag["gather"] else y.reshape(*a.shape[:-1], n),)


def contract(fields: dict[str, str], a: Array, *inputs: Array) -> tuple[Array]:
    """A product; its left operand may be the ReLU of another one, which gathers then."""
    left, k, n = list(inputs), int(fields["k"]), int(fields["n"])
    if "inner" in fields:
        inner = int(fields["inner"])
        panels = left.pop(0)
        bias = left.pop(0) if fields["inner_bias"] == "1" else np.zeros(k, np.float32)
        assert a.shape[-1] == inner and bias.shape == (k,)
        first = {"k": str(inner), "n": str(k), "activation": "relu", "residual": "0"}
        first |= {"bias": "1", "gather": fields["gather"], "scatter": "0"}
        gathers = fields["gather"] == "1"
        (a,) = gather_gemm(first, a, panels, bias, *(left[-2:] if gathers else []))
        left = left[:-2] if gathers and fields["scatter"] == "0" else left
        fields = fields | {"gather": "0"}
    if fields["right"] != "panels":
        s = left.pop(0)
        assert s.dtype == np.float32
        assert s.shape == {"kn": (k, n), "nk": (n, k)}[fields["right"]]
        if fields["factor"] != "0":
            factor = left.pop(0)
            assert factor.dtype == s.dtype and factor.shape == s.shape
            s = s * factor
        mask = left.pop(0) if fields["tiles"] == "1" else None
        left.insert(0, pack_panels(s if fields["right"] == "kn" else s.T))
        if mask is not None:
            (y,) = gather_gemm(fields, a, *left)
            assert mask.shape[-1] == n and mask.size == y.size
            return (np.where(mask.reshape(y.shape) != 0, y, np.float32(0)),)
    return gather_gemm(fields, np.maximum(a, 0) if fields["input_relu"] == "1" else a, *left)


def choose_channels(fields: dict[str, str], flags: Array) -> tuple[Array]:
    extents, weights = (list(map(int, fields[k].split(","))) for k in ("channels", "weights"))
    live, used = [], 0
    for extent, place in zip(extents, fields["places"].split(","), strict=True):
        if place == "all":
            live.append(extent)
            continue
        part = flags[int(place) : int(place) + extent]
        assert part.shape == (extent,)
        live.append(int(np.count_nonzero(~(part <= 0))))
        used += extent
    assert flags.dtype == np.float32 and flags.shape == (used,)
    taken = sum(w * a * b for w, (a, b) in zip(weights, pairwise(live), strict=True))
    return (np.array(taken <= int(fields["budget"])),)


def region(fields: dict[str, str], live: Array, *inputs: Array) -> tuple[Array, ...]:
    """Steps one behind the other; biases are as long as all panels."""
    rows, _, _ = detect({"rank": str(live.ndim)}, live)
    given, made = [live, *inputs], list[Array]()
    for number in range(int(fields["steps"])):
        begin = f"step{number}."
        own = {k.removeprefix(begin): v for k, v in fields.items() if k.startswith(begin)}
        named = own.pop("reads").split(",")
        operands = [
            rows if x == "rows" else made[int(x[1:])] if x[0] == "s" else given[int(x)]
            for x in named
        ]
        biases = {2: "k", 4: "n"} if "inner" in own else {2: "n"}
        for place, columns in biases.items():
            operands[place] = operands[place][: int(own[columns])]
        made += contract(own, *operands)
    return tuple(made[int(number)] for number in fields["gives"].split(","))


def attention_grad(fields: dict[str, str], *inputs: Array) -> tuple[Array, ...]:
    q, k, v, q_offsets, k_offsets, *rest = inputs
    g = rest.pop()
    inputs, seen = seen_of(fields, (q, k, v, q_offsets, k_offsets, *rest))
    heads, scale = int(fields["heads"]), number(fields["scale"])
    q, k, v, g = (x if x.ndim == 3 else x[:, None] for x in (q, k, v, g))  # of one head
    found = [np.zeros(x.shape, np.float32) for x in (q, k, v)]
    for s, h in product(range(len(q_offsets) - 1), range(heads)):
        qs, ks = slice(*q_offsets[s : s + 2]), slice(*k_offsets[s : s + 2])
        bias = np.zeros((qs.stop - qs.start, ks.stop - ks.start))
        if fields["bias"] == "1":
            one = plane_of_bias(inputs[5], heads, len(q_offsets) - 1, s, h)
            at = [c[-1, r] for c, r in zip(inputs[6:8], (qs, ks), strict=True)]
            at = [a if n > 1 else np.zeros_like(a) for a, n in zip(at, one.shape, strict=True)]
            bias = bias + one[np.ix_(*at)]
        if seen is not None:
            bias = np.where(seen[s], bias, -np.inf)
        read = (q[qs, h], k[ks, h], v[ks, h], g[qs, h])
        floor = number(fields.get("floor", (-np.inf).hex()))
        made = gradients(*read, scale, bias, floor, fields.get("no_pairs", "nan"))
        for out, rows, part in zip(found, (qs, ks, ks), made, strict=True):
            out[rows, h] = part
    return tuple(found)


def add_rows(fields: dict[str, str], places: Array, rows: Array, *others: Array) -> tuple[Array]:
    given = others[0] if len(others) > (fields["scaled"] == "1") else None
    kinds = ("n" in fields) + (fields["sized"] == "1") + (fields["started"] == "1")
    assert kinds == 1 and (given is None) == ("n" in fields)
    if fields["started"] == "1":
        assert given is not None and given.dtype == np.float32
        out = given.copy()
    else:
        count = int(fields["n"] if given is None else given[0])
        out = np.zeros((count, rows.shape[1]), np.float32)
    factors = others[-1].reshape(-1, 1) if fields["scaled"] == "1" else np.float32(1)
    assert np.size(factors) in (1, len(rows))
    np.add.at(out, places.reshape(-1), rows * factors)
    return (out,)


def outer_products(
    fields: dict[str, str], a: Array, b: Array, mask: Array | None = None
) -> tuple[Array]:
    assert a.dtype == b.dtype == np.float32 and (mask is not None) == (fields["masked"] == "1")
    with np.errstate(invalid="ignore"):
        made = a.T.astype(np.float64) @ b
    assert mask is None or mask.shape == made.shape
    return (made.astype(np.float32) if mask is None else np.where(mask != 0, made, 0).astype("f"),)


def grouped(fields: dict[str, str], a: Array, group: Array, b: Array) -> tuple[Array]:
    count, k, n = (int(fields[name]) for name in ("groups", "k", "n"))
    t, j = group.shape
    assert a.dtype == np.float32 and group.dtype == np.int64
    assert a.ndim == 4 and a.shape[::3] == (t, k) and a.shape[1] in (1, j)
    if fields.get("rounded"):  # pairs of rows stand side by side
        pairs = b.astype(np.float32).reshape(len(b), b.shape[1], -1, 2)
        b = pairs.transpose(0, 1, 3, 2).reshape(len(b), 2 * b.shape[1], -1)[:, :k]
    panels = b.reshape(count, -1, k, b.shape[-1])
    matrices = np.stack([unpack_panels(one, n) for one in panels]).astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        return ((a @ matrices[group]).astype(np.float32),)


def sparse_product(fields: dict[str, str], a: Array, b: Array) -> tuple[Array]:
    assert a.dtype == b.dtype == np.float32 and b.ndim == 2
    with np.errstate(invalid="ignore", over="ignore"):
        rows = np.moveaxis(a, 0, -1) if fields["turned"] == "1" else a
        return ((rows.astype(np.float64) @ b).astype(np.float32),)


def elementwise(fields: dict[str, str], *operands: Array) -> tuple[Array, ...]:
    """Step by step, by the operators' records, in the operands' types."""
    formula = Formula.of(fields["kinds"].split(","), unquote(fields["formula"]))
    pairs = list(zip(operands, formula.kinds, strict=True))
    assert fields.get("by_rows") != "0" or not {*formula.kinds} & {*HALVES}
    given = [np.split(x, 2, -1)[HALVES.index(k)] if k in HALVES else x for x, k in pairs]
    known: dict[str, Array] = {f"x{i}": x for i, x in enumerate(given)}
    whole = max(
        x.shape[-1]
        for x, kind in zip(given, formula.kinds, strict=True)
        if kind in (WHOLE, *HALVES)
    )
    for k, step in enumerate(formula.steps):
        parts = [known[x] if x in known else np.float32(float.fromhex(x)) for x in step.operands]
        assert step.op not in REDUCTIONS or parts[0].shape[-1:] == (whole,), (
            "a kernel sums whole rows"
        )
        known[f"s{k}"] = _step(step.op, parts)
    return tuple(known[f"s{k}"] for k in formula.results)


def _step(op: str, parts: Sequence[Any]) -> Array:
    with np.errstate(all="ignore"):
        if op in REDUCTIONS:
            reduce = np.mean if op == "ReduceMean" else np.sum
            made = reduce(parts[0], axis=-1, keepdims=True, dtype=np.float64)
            return np.asarray(made, np.float32)
        if op == "Cast":
            return parts[0].astype(np.float32)
        function = OPERATORS["", op].function
        assert function is not None and function.evaluate is not None
        made = function.evaluate(*parts)
    return np.asarray(made, bool if function.boolean else np.float32)


OPERATIONS: dict[str, Callable[..., tuple[Array, ...]]] = {
    "region": region,
    "choose_channels": choose_channels,
    "contract": contract,
    "detect": detect,
    "pack": pack,
    "unpack": unpack,
    "pairs": pairs,
    "attention": attention,
    "attention_grad": attention_grad,
    "add_rows": add_rows,
    "outer_products": outer_products,
    "grouped": grouped,
    "sparse_product": sparse_product,
    "elementwise": elementwise,
}


class EPContext(OpRun):
    op_domain = "com.microsoft"

    def _run(self, *inputs: Array, ep_cache_context: str | bytes = "", **_: Any) -> Any:
        text = ep_cache_context
        fields = parse(text.decode() if isinstance(text, bytes) else text)
        return OPERATIONS[fields["op"]](fields, *inputs)


class GatherElements(OpRun):
    """The evaluator's own fails on more than 64 rows."""

    def _run(self, data: Array, indices: Array, axis: int = 0) -> Any:
        return (np.take_along_axis(data, indices, axis),)


class Flatten(OpRun):
    """The evaluator's own fails on sizes of 0."""

    def _run(self, x: Array, axis: int = 1) -> Any:
        return (x.reshape(int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis:]))),)


class Fused(OpRun):
    """An operator of ONNX Runtime's own, run by ONNX Runtime."""

    op_domain = "com.microsoft"

    def _run(self, *inputs: Array | None, **_: Any) -> tuple[Array, ...]:
        node = self.onnx_node
        given = [(name, x) for name, x in zip(node.input, inputs, strict=True) if name]
        feeds = {name: np.asarray(x) for name, x in given if x is not None}
        infos = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for n, x in feeds.items()
        ]
        outputs = [helper.make_empty_tensor_value_info(n) for n in node.output if n]
        graph = helper.make_graph([node], "node", infos, outputs)
        opsets = [helper.make_opsetid(d, v) for d, v in (("", 17), ("com.microsoft", 1))]
        proto = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        session = ort.InferenceSession(
            proto.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        found = iter(session.run(None, feeds))
        return tuple(np.asarray(next(found)) if n else np.zeros(0) for n in node.output)


MICROSOFT = (
    "Attention BiasGelu DynamicQuantizeMatMul EmbedLayerNormalization FastGelu FusedGemm "
    "FusedMatMul Gelu MatMulIntegerToFloat MatMulNBits MultiHeadAttention QGemm QLinearAdd "
    "QLinearLeakyRelu QLinearMul QLinearSigmoid QLinearSoftmax QLinearWhere QuickGelu "
    "RotaryEmbedding SkipLayerNormalization SkipSimplifiedLayerNormalization"
)
STANDARD = (  # the evaluator rounds some otherwise, and takes no extremes of nothing
    "DequantizeLinear DynamicQuantizeLinear MatMulInteger QLinearMatMul QuantizeLinear "
    "SimplifiedLayerNormalization"
)
FUSED = [
    *(type(name, (Fused,), {}) for name in MICROSOFT.split()),
    *(type(name, (Fused,), {"op_domain": ""}) for name in STANDARD.split()),
]


def evaluator(model: onnx.ModelProto) -> ReferenceEvaluator:
    """Evaluates a lowered model, as often as it is asked."""
    return ReferenceEvaluator(model, new_ops=[EPContext, GatherElements, Flatten, *FUSED])


def run_lowered(
    model: onnx.ModelProto | ReferenceEvaluator, feeds: dict[str, Array]
) -> list[Array]:
    """Outputs of a lowered model, or of one that is evaluated several times.

    Every result of a PIT node has the type and the sizes that the model declares for it.
    """
    ready = model if isinstance(model, ReferenceEvaluator) else evaluator(model)
    found: dict[str, Array] = ready.run(None, feeds, intermediate=True)  # type: ignore[assignment]
    proto = ready.proto_
    assert isinstance(proto, onnx.ModelProto)
    declared = {v.name: v.type.tensor_type for v in proto.graph.value_info}
    sizes: dict[str, int] = {}
    for node in proto.graph.node:
        for name in node.output if node.op_type == "EPContext" else ():
            if name in declared:
                _expect_declared(name, declared[name], found[name], sizes)
    return [found[output.name] for output in proto.graph.output]


def _expect_declared(
    name: str, declared: onnx.TypeProto.Tensor, x: Array, sizes: dict[str, int]
) -> None:
    """Compare a value with its declaration; a symbol stands for one size."""
    assert helper.tensor_dtype_to_np_dtype(declared.elem_type) == x.dtype, name
    if declared.HasField("shape"):
        assert len(declared.shape.dim) == x.ndim, (name, x.shape)
        for dim, size in zip(declared.shape.dim, x.shape, strict=True):
            assert not dim.HasField("dim_value") or dim.dim_value == size, (name, x.shape)
            assert not dim.dim_param or sizes.setdefault(dim.dim_param, size) == size, name
