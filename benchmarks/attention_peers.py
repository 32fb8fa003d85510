"""Attention by libraries that are given the mask, and as people write it by hand for one mask.

Each function gets a workload and makes what runs one call of it. The mask as a tensor, indices,
chunks of masks and layouts are made beforehand, in the peers' favour; the block mask of
flex_attention is made once for the layers that share it, and each call counts its part.
"""

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.attention_cases import AttentionCase, StepCase
from benchmarks.flex_tests import flex_test
from benchmarks.workload import Amortised, Array, Feeds, Infer, Workload
from models.attention_reference import seen_by
from models.pair_masks import Causal, Everything, Window
from pitc.measure.bench import compiled_by_openvino

LAYERS = 12  # that share one block mask


def attention_of(workload: Workload) -> AttentionCase | None:
    """The case where it is attention alone, all tokens among themselves."""
    return workload.case if isinstance(workload.case, AttentionCase) else None


def is_attention(workload: Workload) -> bool:
    """True of attention alone: any mask can be given as a tensor."""
    return attention_of(workload) is not None


def masked_by(*kinds: type) -> Callable[[Workload], bool]:
    """True of attention under these kinds of masks."""

    def competes(workload: Workload) -> bool:
        case = attention_of(workload)
        return case is not None and isinstance(case.mask, kinds)

    return competes


def is_step(workload: Workload) -> bool:
    """True of one token behind a cache."""
    return isinstance(workload.case, StepCase)


def is_causal(workload: Workload) -> bool:
    """True of attention to all earlier keys."""
    case = attention_of(workload)
    return case is not None and case.mask == Causal()


def is_window(workload: Workload) -> bool:
    """True of attention to near keys, and perhaps global ones."""
    case = attention_of(workload)
    if case is None:
        return False
    return isinstance(case.mask, Window) or (
        isinstance(case.mask, Causal) and case.mask.window is not None
    )


def _case(workload: Workload) -> AttentionCase:
    case = attention_of(workload)
    if case is None:
        raise TypeError(f"{type(workload.case).__name__} is not attention alone")
    return case


def _mask(workload: Workload) -> Array | None:
    """The mask of all pairs, bool [batch, 1, query, key]; None: every pair is seen."""
    case, (feeds,) = _case(workload), workload.batches
    if isinstance(case.mask, Everything):
        return None
    return seen_by(case.mask, feeds, len(feeds["q"]), case.length)


# --- OpenVINO's own operator ----------------------------------------------------------------------


def openvino_sdpa(workload: Workload) -> Infer:
    """ScaledDotProductAttention with the mask as a tensor, or causal, or without."""
    # By name: type checkers run where it is not installed.
    openvino = importlib.import_module("openvino")
    opset13 = importlib.import_module("openvino.opset13")
    case, mask = _case(workload), _mask(workload)
    causal, size = case.mask == Causal(), case.config.size
    inputs = [opset13.parameter([1, -1, case.heads * size], np.float32) for _ in "qkv"]
    turned = np.array([0, 2, 1, 3])

    def by_head(rows: Any) -> Any:
        apart = opset13.reshape(rows, np.array([0, 0, case.heads, size]), special_zero=True)
        return opset13.transpose(apart, turned)

    heads = [by_head(rows) for rows in inputs]
    if mask is not None and not causal:
        inputs.append(opset13.parameter([1, 1, -1, -1], np.bool_))
        heads.append(inputs[-1])
    y = opset13.transpose(opset13.scaled_dot_product_attention(*heads, causal=causal), turned)
    y = opset13.reshape(y, np.array([0, 0, case.heads * size]), special_zero=True)
    path = workload.model.with_name("sdpa.xml")
    model = openvino.Model([y], inputs)
    openvino.save_model(model, path, compress_to_fp16=False)
    request = compiled_by_openvino(path).create_infer_request()

    def infer(feeds: Feeds) -> Array:
        given = [feeds["q"], feeds["k"], feeds["v"], mask]
        return np.asarray(request.infer(given[: len(inputs)])[0])

    return infer


# --- torch ----------------------------------------------------------------------------------------


def _torch() -> Any:
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    return torch


def _operands(torch: Any, feeds: Feeds) -> list[Any]:
    return [torch.from_numpy(feeds[name]) for name in ("q", "k", "v")]


def _by_head(workload: Workload, attend: Callable[..., Any]) -> Infer:
    """Attention of heads, which are views of rows, and rows again."""
    torch, heads = _torch(), _case(workload).heads

    def infer(feeds: Feeds) -> Array:
        rows = _operands(torch, feeds)
        y = attend(*(x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in rows))
        return np.asarray(y.transpose(1, 2).flatten(2).numpy())

    return infer


def torch_sdpa(workload: Workload) -> Infer:
    """scaled_dot_product_attention with the mask as a tensor."""
    torch, mask = _torch(), _mask(workload)
    attend = torch.nn.functional.scaled_dot_product_attention
    given = None if mask is None else torch.from_numpy(mask)
    return _by_head(workload, partial(attend, attn_mask=given))


def torch_causal(workload: Workload) -> Infer:
    """scaled_dot_product_attention, told that it is causal."""
    torch = _torch()
    attend = torch.nn.functional.scaled_dot_product_attention
    return _by_head(workload, partial(attend, is_causal=True))


def torch_flex(size: int, workload: Workload) -> Infer:
    """Compiled flex_attention, and its block mask, compiled too, in blocks of this size."""
    torch = _torch()
    from torch.nn.attention import flex_attention as flex  # pyright: ignore[reportMissingImports]

    torch._dynamo.config.recompile_limit = 1000  # each case is compiled for its own shapes
    case, (feeds,) = _case(workload), workload.batches
    length = case.length
    test = flex_test(case.mask, feeds, length, torch.from_numpy)
    attend = torch.compile(flex.flex_attention, dynamic=False)
    make = torch.compile(flex.create_block_mask, dynamic=False)
    once = partial(make, test, 1, None, length, length, device="cpu", BLOCK_SIZE=size)
    mask = once()
    return Amortised(_by_head(workload, partial(attend, block_mask=mask)), once, LAYERS)


# --- torch by hand --------------------------------------------------------------------------------


def torch_chunks(size: int, workload: Workload) -> Infer:
    """A chunk of queries at a time against the keys of its windows and global ones; global queries
    against all.
    """
    torch, case, (feeds,) = _torch(), _case(workload), workload.batches
    attend, length = torch.nn.functional.scaled_dot_product_attention, case.length
    if isinstance(case.mask, Causal):
        before, behind, flags = (case.mask.window or length) - 1, 0, np.zeros(length, np.bool_)
    elif isinstance(case.mask, Window):
        before = behind = case.mask.width // 2
        flags = feeds["global"][0] != 0 if "global" in feeds else np.zeros(length, np.bool_)
    else:
        raise TypeError(f"{case.mask} is no window")
    places = torch.from_numpy(np.flatnonzero(flags))
    chunks = []
    for start in range(0, length, size):
        end = min(start + size, length)
        low, high = max(0, start - before), min(length, end + behind)
        back = np.arange(start, end)[:, None] - np.arange(low, high)
        near = (back <= before) & (back >= -behind) & ~flags[low:high]
        seen = np.concatenate([near, np.ones((end - start, flags.sum()), np.bool_)], 1)
        chunks.append((start, end, low, high, torch.from_numpy(seen[None, None])))

    def chunked(q: Any, k: Any, v: Any) -> Any:
        y = torch.empty_like(q)
        far_k, far_v = k[:, :, places], v[:, :, places]
        for start, end, low, high, seen in chunks:
            keys, values = (
                torch.cat([x[:, :, low:high], far], 2) if len(places) else x[:, :, low:high]
                for x, far in ((k, far_k), (v, far_v))
            )
            y[:, :, start:end] = attend(q[:, :, start:end], keys, values, attn_mask=seen)
        if len(places):
            y[:, :, places] = attend(q[:, :, places], k, v)
        return y

    return _by_head(workload, chunked)


def torch_documents(workload: Workload) -> Infer:
    """Causal attention of one document at a time."""
    torch = _torch()
    attend = torch.nn.functional.scaled_dot_product_attention

    (feeds,) = workload.batches
    starts = np.flatnonzero(np.diff(feeds["segments"][0], prepend=-1)).tolist()

    def by_document(q: Any, k: Any, v: Any) -> Any:
        y = torch.empty_like(q)
        for start, end in zip(starts, [*starts[1:], q.shape[2]], strict=True):
            rows = slice(start, end)
            y[:, :, rows] = attend(q[:, :, rows], k[:, :, rows], v[:, :, rows], is_causal=True)
        return y

    return _by_head(workload, by_document)


def _torch_step(workload: Workload, cut: bool) -> Infer:
    torch, case = _torch(), workload.case
    if not isinstance(case, StepCase):
        raise TypeError(f"{type(case).__name__} is no step behind a cache")
    attend, window = torch.nn.functional.scaled_dot_product_attention, case.config.window
    seen = torch.arange(case.past + 1) > case.past - window

    def infer(feeds: Feeds) -> Array:
        q, k, v = _operands(torch, feeds)
        keys, values = (
            torch.cat([torch.from_numpy(feeds[f"past_{part}"]), x], 2)
            for part, x in (("key", k), ("value", v))
        )
        if cut:
            near = keys[:, :, -window:], values[:, :, -window:]
            return np.asarray(attend(q, *near, enable_gqa=True).numpy())
        return np.asarray(attend(q, keys, values, attn_mask=seen[None], enable_gqa=True).numpy())

    return infer


def torch_step(workload: Workload) -> Infer:
    """The cache extended, then attention with grouped heads and a mask."""
    return _torch_step(workload, cut=False)


def torch_step_cut(workload: Workload) -> Infer:
    """The cache extended, then attention to the keys of the window alone."""
    return _torch_step(workload, cut=True)
