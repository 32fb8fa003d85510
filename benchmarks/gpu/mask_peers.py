"""What else attends under a mask on a GPU: PyTorch's attention with the mask as a tensor, causal or
without one, flash attention over documents and windows, and flex_attention, compiled.

Masks, offsets and block masks are made beforehand, in the peers' favour.
"""

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.flex_tests import flex_test
from benchmarks.gpu.answers import expect
from benchmarks.gpu.mask_work import Answer, MaskWork
from benchmarks.gpu.peers import PEER_TOLERANCE, Torch
from benchmarks.gpu.timing import Contender, Make
from models.pair_masks import Causal, Documents, Everything

Attend = Callable[..., Any]


def mask_peers(torch: Torch, work: MaskWork, sets: int) -> dict[str, Make]:
    """Attention of libraries that need no compiler.

    Args:
        torch: PyTorch.
        work: What is computed.
        sets: Copies of the operands, which take turns.
    """
    sdpa = torch.torch.nn.functional.scaled_dot_product_attention
    makers: dict[str, Make] = {}
    if isinstance(work.mask, Everything):
        makers["sdpa"] = partial(_by_head, torch, lambda: sdpa, work.answer, sets)
    else:

        def masked() -> Attend:
            return partial(sdpa, attn_mask=torch.put(work.seen))

        makers["sdpa-mask"] = partial(_by_head, torch, masked, work.answer, sets)
    if work.mask == Causal():
        causal = partial(sdpa, is_causal=True)
        makers["sdpa-causal"] = partial(_by_head, torch, lambda: causal, work.answer, sets)
    if (flash := flash_attention(torch, work)) is not None:
        makers["flash-varlen"] = partial(_by_rows, torch, flash, work.answer, sets)
    return makers


def flex_peer(torch: Torch, work: MaskWork, sets: int) -> dict[str, Make]:
    """flex_attention, compiled, with the mask as a function and its block mask made once."""

    def attend() -> Attend:
        flex = importlib.import_module("torch.nn.attention.flex_attention")
        inductor: Any = importlib.import_module("torch._inductor.config")
        dynamo: Any = importlib.import_module("torch._dynamo.config")
        inductor.compile_threads = 1  # one kernel needs no other processes
        dynamo.recompile_limit = 1000  # each case is compiled for its own mask
        test = flex_test(work.mask, work.feeds, work.length, torch.put)
        sizes, device = (work.length, work.length), torch.put(work.seen).device
        blocks = flex.create_block_mask(test, 1, None, *sizes, device=device)
        compiled = torch.torch.compile(flex.flex_attention, dynamic=False)
        return partial(compiled, block_mask=blocks)

    def make() -> Contender:
        once = attend()  # one block mask and one kernel for all sets
        return _by_head(torch, lambda: once, work.answer, sets)

    return {"flex": make}


def flash_attention(torch: Torch, work: MaskWork) -> Attend | None:
    """Flash attention of rows [query, head, width]; None where it knows no such mask."""
    t, mask, length = torch.torch, work.mask, work.length
    flash, starts = t.ops.aten._flash_attention_forward, np.zeros(1, np.int64)
    window = {}
    if isinstance(mask, Documents):
        starts = np.flatnonzero(np.diff(work.feeds["segments"][0], prepend=-1))
    elif isinstance(mask, Causal) and mask.window is not None:
        named = {argument.name for argument in flash.default._schema.arguments}
        if "window_size_left" not in named:
            return None
        window = {"window_size_left": mask.window - 1, "window_size_right": 0}
    else:
        return None
    ends = np.append(starts, length).astype(np.int32)
    at, longest = torch.put(ends), int(np.diff(ends).max())

    def attend(q: Any, k: Any, v: Any) -> Any:
        return flash(q, k, v, at, at, longest, longest, 0.0, True, False, **window)[0]

    return attend


def _by_head(torch: Torch, make: Callable[[], Attend], answer: Answer, sets: int) -> Contender:
    """Attention of [1, head, query, width]; each set has a mask of its own."""
    turned = [np.ascontiguousarray(x.transpose(1, 0, 2)[None]) for x in answer.operands]
    works = [partial(make(), *map(torch.put, turned)) for _ in range(sets)]
    return _checked(torch, works, answer, lambda y: y[0].transpose(0, 1))


def _by_rows(torch: Torch, attend: Attend, answer: Answer, sets: int) -> Contender:
    works = [partial(attend, *map(torch.put, answer.operands)) for _ in range(sets)]
    return _checked(torch, works, answer, lambda y: y)


def _checked(
    torch: Torch, works: list[Attend], answer: Answer, rows_of: Callable[[Any], Any]
) -> Contender:
    """A contender that computes what we do, in each set.

    Raises:
        AssertionError: It does not.
    """
    queries = torch.put(answer.queries)
    errors = [answer.error(rows_of(work())[queries].cpu().numpy()) for work in works]
    for error in errors:
        expect("attention", error, PEER_TOLERANCE)
    return torch.contender(*works, error=max(errors))
