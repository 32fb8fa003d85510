"""Attention, and the layer of a transformer, that are timed."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.gpu.answers import attention_error, checked, expect, normal
from benchmarks.gpu.arrays import download, empty, part, upload
from benchmarks.gpu.driver import Array
from benchmarks.gpu.journal import Case, Result, Telling
from benchmarks.gpu.mask_work import EVERYTHING, Sees
from benchmarks.gpu.peers import Torch, attention_peers
from benchmarks.gpu.products import Machine, Operands, Work, dense, dense_tile
from benchmarks.gpu.run import DTYPE, ITEM, OURS, Run
from benchmarks.gpu.timing import Contender, Make, operand_sets
from pitc.check.feeds import draw_lengths
from pitc.codegen.call import DeviceTensor
from pitc.ir.cuda_target import SUMS_M
from pitc.ir.seen import NO_PAIRS

BERT, TINY = (32, 128, 12, 768, 3072), (4, 16, 1, 64, 128)
"""Sequences, their longest, heads, width and inner width: BERT-base, and for an emulated device."""


def _lengths(run: Run) -> tuple[list[int], int]:
    batch, longest = (TINY if run.small else BERT)[:2]
    lengths = draw_lengths(np.random.default_rng(0), batch, longest, longest * 40 // 128)
    return lengths, longest


def attention_cases(run: Run) -> Iterator[Case]:
    """Attention over packed sequences of a mean of 40 of 128 tokens, 12 heads of 64."""
    lengths, longest = _lengths(run)
    heads = 2 if run.small else 12
    name = f"attention-{len(lengths)}x{longest}-m{longest * 40 // 128}"
    facts = {"dtype": DTYPE, "heads": heads, "width": 64, "tokens": sum(lengths)}
    yield Case(name, facts, partial(_attention, run, lengths, longest, heads))


def _attention(run: Run, lengths: list[int], longest: int, heads: int, telling: Telling) -> Result:
    q, k, v = (normal(np.random.default_rng(s), sum(lengths), heads, 64) for s in range(3))
    sets = operand_sets(run.device, 4 * q.nbytes)

    def packed() -> Contender:
        made = []
        for _ in range(sets):
            left = [upload(run.device, x) for x in (q, k, v)]
            made.append(attention(run.machine, left[0], left[1], left[2], lengths))
        work, out = made[0]
        work()
        error = attention_error(download(run.device, out), (q, k, v), lengths)
        expect("attention", error)
        return run.own([work for work, _ in made], error=error)

    makers: dict[str, Make] = {OURS: packed}
    makers |= run.peers(lambda torch: attention_peers(torch, lengths, longest, heads, 64, sets))
    return run.timed(telling, makers, 4 * q.nbytes, sets)


def attention(
    machine: Machine,
    q: DeviceTensor,
    k: DeviceTensor,
    v: DeviceTensor,
    lengths: list[int],
    sees: Sees = EVERYTHING,
) -> tuple[Work, DeviceTensor]:
    """Attention over packed sequences, as the runtime launches it, and where its answer will be."""
    rows, heads, width = q.shape
    ends = upload(machine.device, np.cumsum([0, *lengths]).astype(np.int32))
    gate = upload(machine.device, np.array([0, rows], np.int32))
    out = empty(machine.device, (rows, heads, width), np.float16)
    turns = machine.turns((rows // SUMS_M + len(lengths)) * heads)
    looked_at: list[DeviceTensor] = []
    numbers = [float(width**-0.5), 0, 0, 0, 0, 0]
    if sees.text:
        places = np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])
        looked_at += [upload(machine.device, places)] * 2
        looked_at += [upload(machine.device, x) for x in sees.tests]
        numbers[2] = 1  # a row without keys is 0
        numbers.append(NO_PAIRS.index(sees.no_pairs))
    symbol = sees.request(DTYPE, width).symbol
    arguments = (q, k, v, ends, ends, *looked_at, out, *numbers, gate, 0, turns)
    return machine.library.bound(f"{symbol}_cuda", *arguments), out


def layer_cases(run: Run) -> Iterator[Case]:
    """All products and the attention of a layer of BERT-base, 32 sequences of a mean of 40 tokens.

    Layer norms and residuals are in neither side's time. `torch-padded` computes all 32 x 128
    places, `torch-packed` the live tokens in dense products and in the attention for packed ones.
    """
    batch, longest, _, hidden, ffn = TINY if run.small else BERT
    lengths, _ = _lengths(run)
    facts = {"dtype": DTYPE, "tokens": sum(lengths), "places": batch * longest}
    facts |= {"hidden": hidden, "ffn": ffn}
    name = f"layer-{batch}x{longest}-m{longest * 40 // 128}"
    yield Case(name, facts, partial(_layer, run, lengths))


def _layer(run: Run, lengths: list[int], telling: Telling) -> Result:
    batch, longest, heads, hidden, ffn = TINY if run.small else BERT
    rng = np.random.default_rng(4)
    shapes = [*[(hidden, hidden)] * 4, (hidden, ffn), (ffn, hidden)]
    weights = [normal(rng, *s) * np.float16(s[0] ** -0.5) for s in shapes]
    inputs = {width: normal(rng, sum(lengths), width) for width in (hidden, ffn)}
    set_bytes = ITEM * (sum(w.size for w in weights) + sum(x.size for x in inputs.values()))
    sets = operand_sets(run.device, set_bytes)

    def ours() -> Contender:
        works, errors = zip(
            *(_one_layer(run, weights, inputs, lengths, heads) for _ in range(sets)), strict=True
        )
        return run.own(works, errors=errors[0])

    def of_torch(torch: Torch) -> dict[str, Make]:
        rows = {"torch-padded": batch * longest, "torch-packed": sum(lengths)}
        attends = {"torch-padded": "sdpa-padded", "torch-packed": "flash-varlen"}
        attention_of = attention_peers(torch, lengths, longest, heads, hidden // heads, sets)
        return {
            name: partial(_torch_layer, torch, rows[name], weights, attention_of[peer], sets)
            for name, peer in attends.items()
        }

    makers: dict[str, Make] = {OURS: ours, **run.peers(of_torch)}
    return run.timed(telling, makers, set_bytes, sets)


def _one_layer(
    run: Run,
    weights: Sequence[Array],
    inputs: dict[int, Array],
    lengths: list[int],
    heads: int,
) -> tuple[Work, dict[str, float]]:
    """A layer with weights of its own, and the errors of its parts.

    Raises:
        AssertionError: An answer is wrong.
    """
    works: list[Work] = []
    outputs = []
    errors: dict[str, float] = {}
    for w, activation in zip(weights, ("none",) * 4 + ("gelu", "none"), strict=True):
        inner = inputs[w.shape[0]]
        operands = Operands.of(run.device, inner, w, DTYPE)
        works.append(dense(run.machine, operands, dense_tile(run.machine, operands), activation))
        error = checked(run.device, operands, works[-1], inner, w, activation)
        errors[f"product-{len(works)}"] = error
        outputs.append(operands.c)
    q, k, v = (part(c, c.shape[0], heads, c.shape[1] // heads) for c in outputs[:3])
    attend, out = attention(run.machine, q, k, v, lengths)
    attend()
    of = tuple(download(run.device, tensor) for tensor in (q, k, v))
    errors["attention"] = attention_error(download(run.device, out), of, lengths)
    expect("attention", errors["attention"])
    works.insert(3, attend)

    def layer() -> None:
        for work in works:
            work()

    return layer, errors


def _torch_layer(
    torch: Torch, rows: int, weights: Sequence[Array], attention: Make, sets: int
) -> Contender:
    """The same in PyTorch, over so many rows, with one of `attention_peers`."""
    t = torch.torch
    attends = attention().works
    gelu = t.nn.functional.gelu

    def random(*shape: int) -> Any:
        return t.randn(shape, dtype=t.float16, device="cuda")

    def one(attend: Work) -> Callable[[], None]:
        inputs = {w.shape[0]: random(rows, w.shape[0]) for w in weights}
        columns = [torch.put(np.ascontiguousarray(w)) for w in weights]

        def work() -> None:
            for number, w in enumerate(columns):
                if number == 3:
                    attend()
                y = t.mm(inputs[w.shape[0]], w)
                if number == 4:
                    gelu(y)

        return work

    return torch.contender(*(one(attends[i]) for i in range(sets)))
