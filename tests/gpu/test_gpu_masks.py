"""Cases of masked attention on a GPU: formulas are the compiler's, peers get the same mask."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from benchmarks.attention_cases import ATTENTION_CASES, AttentionCase
from benchmarks.gpu.answers import TOLERANCE
from benchmarks.gpu.mask_cases import COMPILED, MASKS, SMALL
from benchmarks.gpu.mask_peers import flash_attention
from benchmarks.gpu.mask_work import MaskWork, sees_of
from models.attention import AttentionConfig, attention
from models.attention_reference import attended, seen_by
from models.block_masks import Blocks
from models.graph import Array
from models.half import half
from models.pair_masks import Causal, Documents, Everything, PairMask, Window
from pitc.ir.nodes import is_pit_node
from pitc.ir.target import CUDA
from pitc.passes.pipeline import LowerOptions, run_passes
from tests.attention_cases import Sees
from tests.plan_reference import parse

LENGTH = 1088
"""Longer than every window, and whole blocks."""
KINDS = tuple(dict.fromkeys(mask for mask, _ in MASKS if mask != Everything()))


def compiled(mask: PairMask) -> tuple[dict[str, str], onnx.ModelProto]:
    """The plan of attention, and the model that computes what its tests look at."""
    model = attention(AttentionConfig(mask))
    # Of the least float16 that is added at hidden pairs nothing is proven where a row may be blind.
    model = model if isinstance(mask, Blocks) else half(model)
    found = run_passes(ir.from_proto(model), LowerOptions(target=CUDA, check=True)).model
    (node,) = [n for n in found.graph if is_pit_node(n) and len(n.inputs) > 1]
    proto = ir.to_proto(found)
    wanted = [value.name for value in node.inputs[7:] if value is not None]
    needed, kept = set(wanted), []
    for other in reversed(proto.graph.node):
        if needed & set(other.output):
            kept.append(other)
            needed |= set(other.input)
    del proto.graph.node[:]
    proto.graph.node.extend(reversed(kept))
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=str(name)) for name in wanted)
    return parse(node.attributes["ep_cache_context"].as_string()), proto


@pytest.mark.parametrize("mask", KINDS, ids=lambda mask: mask.label)
def test_formulas_and_what_tests_look_at_are_the_compilers(mask: PairMask) -> None:
    plan, proto = compiled(mask)
    feeds = mask.draw(np.random.default_rng(3), 1, LENGTH)
    sees = sees_of(mask, feeds, LENGTH)
    dtype = plan["dtype"]
    assert plan["kernels"] == f"attention:{sees.request(dtype, 64).symbol}"
    fixed = {"bias": "0", "nan_to_zero": "0", "no_keys_to_zero": "1", "scale": (1 / 8).hex()}
    fixed |= {"no_pairs": sees.no_pairs}
    fixed |= {f"{x}_head": "0" for x in "qkv"}
    assert {name: plan[name] for name in fixed} == fixed
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    rows = np.zeros((1, LENGTH, 768), np.float32 if dtype == "float32" else np.float16)
    given = feeds | {name: rows for name in "qkv"}
    found = session.run(None, {i.name: given[i.name] for i in session.get_inputs()})
    for want, mine in zip(found, sees.tests, strict=True):
        # The runtime joins dimensions of tests and sequences; flags are bytes.
        flat = np.asarray(want).reshape(mine.shape)
        assert flat.dtype in (mine.dtype, np.bool_)
        np.testing.assert_array_equal(flat.astype(mine.dtype), mine)


@pytest.mark.parametrize("mask", KINDS, ids=lambda mask: mask.label)
def test_formulas_say_what_masks_say(mask: PairMask) -> None:
    feeds = mask.draw(np.random.default_rng(4), 1, LENGTH)
    sees, at = sees_of(mask, feeds, LENGTH), np.arange(LENGTH)
    left = iter(x if x.shape[1:] == (3,) else x[None] for x in sees.tests)
    ops = set(sees.text)
    named: dict[str, Any] = {"positions": next(left) if "p" in ops else None}
    named["tables"] = (next(left), next(left)) if "e" in ops else None
    for name, op in (("keys", "k"), ("queries", "q"), ("flags", "f")):
        named[name] = next(left) if op in ops else None
    assert next(left, None) is None
    np.testing.assert_array_equal(
        Sees(sees.text, **named).pairs(0, at, at), seen_by(mask, feeds, 1, LENGTH)[0, 0]
    )


def test_a_mask_without_a_formula_is_refused() -> None:
    with pytest.raises(ValueError, match="has no formula here"):
        sees_of(Window(9), {}, 20)


def test_cases_are_those_of_cpus() -> None:
    known = {(c.mask, c.length) for c in ATTENTION_CASES if isinstance(c, AttentionCase)}
    assert set(MASKS) - known == {(Everything(), 4096)}
    assert len(set(MASKS)) == len(MASKS) and set(COMPILED) < set(MASKS)
    assert {type(mask) for mask, _ in SMALL} == {type(mask) for mask, _ in MASKS}
    work = MaskWork(Causal(), 512, 12, 64)
    assert work.live_pairs == 512 * 513 // 2 and work.gflop == 4e-9 * 12 * 64 * work.live_pairs


def test_an_answer_is_compared_row_by_row() -> None:
    """A key too many or too few is found in rows that see many, and in those that see few."""
    work = MaskWork(Window(33, globals=3), 200, 2, 64)
    answer, at = work.answer, np.arange(200)
    q, k, v = (x.transpose(1, 0, 2)[None] for x in answer.operands)

    def error(seen: Array, factors: Array | float = 1.0) -> float:
        y = attended(q, k, v, lambda _, asked: seen[asked], at)[0].transpose(1, 0, 2) * factors
        return answer.error(y.astype(np.float16)[answer.queries])

    right = work.seen[0, 0]
    counts = right.sum(axis=1)
    assert error(right) < TOLERANCE / 2
    assert {int(counts.argmax()), int(counts.argmin()), 0, 199} <= set(answer.queries)
    for query in (int(counts.argmax()), int(counts.argmin())):
        wrong = right.copy()
        wrong[query, np.flatnonzero(right[query])[0]] = False
        assert error(wrong) > TOLERANCE
    most = (at == counts.argmax())[:, None, None]
    assert error(right, np.where(most, 1.003, 1.0)) > TOLERANCE, "its row is the smallest"
    lost = answer.operands[0][answer.queries] * np.float16(np.nan)
    assert not answer.error(lost) <= TOLERANCE


class Flash:
    """Flash attention's arguments, by float64: sequences side by side, a window, causal."""

    default = SimpleNamespace(_schema=SimpleNamespace(arguments=[SimpleNamespace(name="q")]))

    def __call__(self, *given: Any, window_size_left: int = -1, window_size_right: int = -1) -> Any:
        q, k, v, ends, ends_k, longest, _, dropout, causal, debug = given
        assert (ends == ends_k).all() and ends.dtype == np.int32
        assert (longest, dropout, causal, debug) == (np.diff(ends).max(), 0.0, True, False)
        assert window_size_right <= 0
        sequence = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
        back = np.arange(len(q))[:, None] - np.arange(len(q))
        seen = (sequence[:, None] == sequence) & (back >= 0)
        seen &= back <= (len(q) if window_size_left < 0 else window_size_left)
        at = np.arange(len(q))
        q, k, v = (x.transpose(1, 0, 2)[None] for x in (q, k, v))
        y = attended(q, k, v, lambda _, asked: seen[asked], at)
        return y[0].transpose(1, 0, 2), None


@pytest.mark.parametrize(
    "mask", [Documents(24), Causal(33), Causal(), Window(33, globals=3)], ids=lambda m: m.label
)
def test_flash_attention_gets_the_same_mask(mask: PairMask) -> None:
    work, flash = MaskWork(mask, 200, 2, 64), Flash()
    aten = SimpleNamespace(_flash_attention_forward=flash)
    torch: Any = SimpleNamespace(torch=SimpleNamespace(ops=SimpleNamespace(aten=aten)))
    torch.put = lambda x: x
    if isinstance(mask, Causal) and mask.window:
        assert flash_attention(torch, work) is None, "its signature has no window"
        named = SimpleNamespace(name="window_size_left")
        flash.default = SimpleNamespace(_schema=SimpleNamespace(arguments=[named]))
    attend = flash_attention(torch, work)
    if mask in (Causal(), Window(33, globals=3)):
        assert attend is None
    else:
        assert attend is not None
        assert work.answer.error(attend(*work.answer.operands)[work.answer.queries]) < 1e-9
