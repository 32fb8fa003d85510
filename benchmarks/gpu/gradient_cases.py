"""Gradients of attention that are timed, in float32: packed sequences, and a causal mask."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.gpu.answers import expect
from benchmarks.gpu.arrays import download, empty, upload
from benchmarks.gpu.driver import Array
from benchmarks.gpu.journal import Case, Result, Telling
from benchmarks.gpu.layer_cases import BERT, TINY
from benchmarks.gpu.peers import Torch
from benchmarks.gpu.products import Work
from benchmarks.gpu.run import OURS, Run
from benchmarks.gpu.timing import Contender, Make, operand_sets
from pitc.check.feeds import draw_lengths
from pitc.codegen import reference
from pitc.codegen.call import DeviceTensor
from pitc.ir.cuda_target import SUMS_M
from pitc.ir.kernel import KernelRequest

WIDTH, NUMBERS = 64, 4
"""Of a head; what the first kernel tells the second of each query and head."""
TOLERANCE = 1e-4
"""Norm of the difference over norm, float32 against float64."""
PRODUCTS = 5
"""Of queries and keys, if nothing is computed twice."""


@dataclass(frozen=True, slots=True)
class Sequences:
    """Sequences whose gradients are computed.

    Args:
        name: Of the case.
        lengths: Tokens of each sequence.
        heads: How many.
        causal: Queries see no later keys.
    """

    name: str
    lengths: tuple[int, ...]
    heads: int
    causal: bool

    @property
    def request(self) -> KernelRequest:
        """Its kernels."""
        return _request("p0" if self.causal else "")

    @property
    def live_pairs(self) -> int:
        """Of a head."""
        return sum(n * (n + 1) // 2 if self.causal else n * n for n in self.lengths)

    @property
    def gflop(self) -> float:
        """Of products over live pairs, of all heads."""
        return 2e-9 * PRODUCTS * WIDTH * self.heads * self.live_pairs


def _request(sees: str) -> KernelRequest:
    named = {"sees": sees} if sees else {}
    return KernelRequest.of_cuda("attention_grad", "float32", d=WIDTH, dv=WIDTH, bias=0, **named)


def gradient_requests() -> list[KernelRequest]:
    """Kernels of all cases."""
    return [_request(""), _request("p0")]


def _works(run: Run) -> list[Sequences]:
    batch, longest, heads = (TINY if run.small else BERT)[:3]
    mean = longest * 40 // 128
    lengths = tuple(map(int, draw_lengths(np.random.default_rng(0), batch, longest, mean)))
    single = (96,) if run.small else (512, 2048)
    return [
        Sequences(f"{batch}x{longest}-m{mean}", lengths, heads, causal=False),
        *(Sequences(f"{n}-causal", (n,), heads, causal=True) for n in single),
    ]


def gradient_cases(run: Run) -> Iterator[Case]:
    """BERT's packed batch, and one sequence under a causal mask."""
    for work in _works(run):
        facts = {"dtype": "float32", "heads": work.heads, "width": WIDTH, "gflop": work.gflop}
        facts |= {"tokens": sum(work.lengths), "live_pairs": work.live_pairs}
        yield Case(f"gradients-{work.name}", facts, partial(_timed, run, work))


def _timed(run: Run, work: Sequences, telling: Telling) -> Result:
    rng = np.random.default_rng(3)
    shape = sum(work.lengths), work.heads, WIDTH
    given = [rng.standard_normal(shape, np.float32) for _ in range(4)]
    set_bytes = 7 * given[0].nbytes
    sets = operand_sets(run.device, set_bytes)

    def ours() -> Contender:
        made = [_gradients(run, work, [upload(run.device, x) for x in given]) for _ in range(sets)]
        for launch, _ in made:
            launch()
        errors = [_error(run, work, given, results) for _, results in made]
        return run.own([launch for launch, _ in made], error=max(errors))

    makers: dict[str, Make] = {OURS: ours}
    makers |= run.peers(lambda torch: _peers(torch, work, given, sets))
    result = run.timed(telling, makers, set_bytes, sets)
    for row in result["contenders"]:
        row["tflops"] = 1e3 * work.gflop / row["us"]
    return result


def _gradients(
    run: Run, work: Sequences, given: list[DeviceTensor]
) -> tuple[Work, list[DeviceTensor]]:
    """Both launches, as the runtime does them, and where the gradients will be."""
    machine, device = run.machine, run.device
    rows, heads, _ = given[0].shape
    ends = upload(device, np.cumsum([0, *work.lengths]).astype(np.int32))
    gate = upload(device, np.array([0, rows], np.int32))
    results = [empty(device, given[0].shape, np.float32) for _ in range(3)]
    numbers = empty(device, (rows, heads, NUMBERS), np.float32)
    turns = gate, 0, machine.turns((rows // SUMS_M + len(work.lengths)) * heads)
    looked_at: list[DeviceTensor] = []
    if work.causal:
        places = np.concatenate([np.arange(n, dtype=np.int32) for n in work.lengths])
        looked_at += [upload(device, places)] * 2
        looked_at.append(upload(device, np.array([[1, -1, 0]], np.int64)))
    read, scale, symbol = (*given, ends, ends, *looked_at), WIDTH**-0.5, work.request.symbol
    bound = machine.library.bound
    dq, dk, dv = results
    of_rows = scale, -np.inf, 0
    of_queries = bound(f"{symbol}_queries_cuda", *read, dq, numbers, *of_rows, *turns)
    of_keys = bound(f"{symbol}_keys_cuda", *read, dk, dv, numbers, scale, *turns)

    def launch() -> None:
        of_queries()
        of_keys()

    return launch, results


def _error(run: Run, work: Sequences, given: list[Array], results: list[DeviceTensor]) -> float:
    """The largest error of the gradients of a head.

    Raises:
        AssertionError: One is wrong.
    """
    found, head = [download(run.device, x)[:, -1] for x in results], work.heads - 1
    q, k, v, g = (x[:, head] for x in given)
    wanted: list[list[Array]] = [[], [], []]
    for start, end in pairwise(np.cumsum([0, *work.lengths])):
        part, n = slice(start, end), end - start
        bias = np.where(np.tri(n, dtype=bool), 0, -np.inf) if work.causal else None
        read = q[part], k[part], v[part], g[part]
        made = reference.attention_grad(*read, WIDTH**-0.5, bias)
        for whole, one in zip(wanted, made, strict=True):
            whole.append(one)
    worst = 0.0
    for got, parts in zip(found, wanted, strict=True):
        want = np.concatenate(parts)
        error = float(np.linalg.norm(got - want) / np.linalg.norm(want))
        expect("gradients", error, TOLERANCE)
        worst = max(worst, error)
    return worst


def _peers(torch: Torch, work: Sequences, given: list[Array], sets: int) -> dict[str, Make]:
    """PyTorch: the backward way of scaled_dot_product_attention of padded sequences, by its own
    engine, and the kernels that it is made of in float32, of padded and of packed sequences.
    """
    t = torch.torch
    forward = t.ops.aten._efficient_attention_forward
    backward = t.ops.aten._efficient_attention_backward
    batch, longest, heads = len(work.lengths), max(work.lengths), work.heads
    ends = np.cumsum([0, *work.lengths])
    kind = int(work.causal)  # of a mask

    def padded(array: Array) -> Array:
        """[batch, longest, heads, width]."""
        out = np.zeros((batch, longest, heads, WIDTH), np.float32)
        for s, (start, end) in enumerate(pairwise(ends)):
            out[s, : end - start] = array[start:end]
        return out

    def hidden() -> Any:
        """What is added to scores, [batch, heads, query, key]; None: nothing."""
        if work.causal:
            return None
        live = np.arange(longest)[None] < np.array(work.lengths)[:, None]
        low = np.where(live, np.float32(0), np.float32(-np.inf))[:, None, None]
        return torch.put(np.broadcast_to(low, (batch, 1, longest, longest)).copy())

    def autograd() -> Callable[[], Any]:
        q, k, v, g = (torch.put(padded(x)).transpose(1, 2) for x in given)
        q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
        attend = t.nn.functional.scaled_dot_product_attention
        y = attend(q, k, v, attn_mask=hidden(), is_causal=work.causal)
        return lambda: t.autograd.grad(y, (q, k, v), g, retain_graph=True)

    def kernels(packed: bool) -> Callable[[], Any]:
        rows = [torch.put(x[None] if packed else padded(x)) for x in given]
        q, k, v, g = rows
        bias, sizes = None, (None, None, longest, longest)
        if packed:
            at = torch.put(ends.astype(np.int32))
            sizes = at, at, longest, longest
        elif not work.causal:
            bias = hidden().expand(batch, heads, longest, longest)
        made = forward(q, k, v, bias, *sizes, 0.0, kind, True)
        y, total, seed, offset = made[:4]
        of = *sizes, total, 0.0, seed, offset, kind, False
        return lambda: backward(g, q, k, v, bias, y, *of)

    def each(one: Callable[[], Callable[[], Any]], *, captured: bool = True) -> Make:
        return lambda: torch.contender(*(one() for _ in range(sets)), captured=captured)

    return {
        "sdpa-backward": each(autograd, captured=False),
        "efficient-padded": each(partial(kernels, packed=False)),
        "efficient-varlen": each(partial(kernels, packed=True)),
    }
