"""Attention under masks of pairs that is timed: kernels that evaluate a formula of tests.

The masks are those of `benchmarks.attention_cases`. What a model computes before attention, flags
of pairs from blocks for instance, is in nobody's time.
"""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from benchmarks.gpu.answers import expect
from benchmarks.gpu.arrays import download, upload
from benchmarks.gpu.driver import Array
from benchmarks.gpu.journal import Case, Result, Telling
from benchmarks.gpu.layer_cases import attention
from benchmarks.gpu.mask_peers import flex_peer, mask_peers
from benchmarks.gpu.mask_work import Answer, MaskWork, requests
from benchmarks.gpu.peers import Torch
from benchmarks.gpu.run import DTYPE, OURS, Run
from benchmarks.gpu.timing import Contender, Make, operand_sets
from models.block_masks import Blocks
from models.pair_masks import Causal, Documents, Everything, PairMask, Window
from pitc.ir.kernel import KernelRequest

WIDTH = 64
MASKS: tuple[tuple[PairMask, int], ...] = (
    (Causal(), 512),
    (Causal(), 2048),
    (Causal(), 4096),
    (Causal(257), 2048),
    (Window(513, globals=16), 4096),
    (Documents(400), 4096),
    (Blocks(64, 0.05), 4096),
    (Everything(), 2048),
    (Everything(), 4096),
)
"""Masks, and tokens of the sequence."""
SMALL: tuple[tuple[PairMask, int], ...] = (
    (Causal(), 96),
    (Causal(33), 96),
    (Window(33, globals=3), 96),
    (Documents(24), 96),
    (Blocks(32, 0.3), 96),
    (Everything(), 96),
)
"""For an emulated device."""
COMPILED = MASKS[6:1:-1]
"""Whose flex_attention is compiled, seconds for each, when all others are timed."""

Peers = Callable[[Torch, MaskWork, int], dict[str, Make]]


def mask_requests() -> list[KernelRequest]:
    """Kernels of all masks, those of the emulated device as well."""
    return requests([mask for mask, _ in (*MASKS, *SMALL)], DTYPE, WIDTH)


def mask_cases(run: Run) -> Iterator[Case]:
    """One sequence under each mask, 12 heads of 64; flex_attention is in cases of its own."""
    works: dict[tuple[PairMask, int], MaskWork] = {}
    for of in SMALL if run.small else MASKS:
        works[of] = MaskWork(*of, heads=1 if run.small else 12, width=WIDTH)
        yield _case(run, works[of], "", mask_peers)
    if run.torch and not run.small:
        for of in COMPILED:
            yield _case(run, works[of], "-flex", flex_peer)


def _case(run: Run, work: MaskWork, suffix: str, peers: Peers) -> Case:
    facts = {
        **{"dtype": DTYPE, "tokens": work.length, "heads": work.heads, "width": WIDTH},
        **{"live_pairs": work.live_pairs, "live_share": work.live_share, "gflop": work.gflop},
        "sees": work.sees().text,
    }
    name = f"masks-{work.length}-{work.mask.label}{suffix}"
    return Case(name, facts, partial(_masked, run, work, peers))


def _masked(run: Run, work: MaskWork, peers: Peers, telling: Telling) -> Result:
    sees = work.sees()
    row_bytes = work.heads * work.width * np.dtype(DTYPE).itemsize
    set_bytes = 4 * work.length * row_bytes + sum(x.nbytes for x in sees.tests)
    sets = operand_sets(run.device, set_bytes)
    answer = work.answer

    def ours() -> Contender:
        works, errors = [], []
        for _ in range(sets):
            q, k, v = (upload(run.device, x) for x in answer.operands)
            attend, out = attention(run.machine, q, k, v, [work.length], sees)
            attend()
            errors.append(_error(download(run.device, out), answer))
            works.append(attend)
        return run.own(works, error=max(errors))

    makers: dict[str, Make] = {OURS: ours}
    makers |= run.peers(lambda torch: peers(torch, work, sets))
    result = run.timed(telling, makers, set_bytes, sets)
    for row in result["contenders"]:
        row["tflops"] = 1e3 * work.gflop / row["us"]
    return result


def _error(out: Array, answer: Answer) -> float:
    """Of our answer, whose memory was no number before.

    Raises:
        AssertionError: It is wrong.
    """
    if not np.isfinite(out).all():
        raise AssertionError("not all rows were written")
    error = answer.error(out[answer.queries])
    expect("attention", error)
    return error
