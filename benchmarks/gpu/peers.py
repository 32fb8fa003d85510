"""What else multiplies and attends on a GPU: PyTorch (cuBLAS, cuSPARSE, its attention), Triton.

PyTorch works in our stream, on copies of our operands. A peer that is missing, or fails, is named
in `left_out` and nothing is said of its time.
"""

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.gpu.driver import Array, Device
from benchmarks.gpu.journal import brief
from benchmarks.gpu.timing import Contender, Make, Work

SPARSE_FROM = 0.9
"""Share of zeros from which libraries for sparse matrices compete."""
PEER_TOLERANCE = 1e-2
"""Norm of the difference over norm: who is further off computes something else."""


class Torch:
    """PyTorch on a device.

    Args:
        device: Whose stream it shall use.

    Raises:
        ImportError: It is not installed, or has no CUDA.
    """

    def __init__(self, device: Device) -> None:
        self.torch: Any = importlib.import_module("torch")
        if not self.torch.cuda.is_available():
            raise ImportError("torch has no CUDA device")
        torch, self._device = self.torch, device
        stream = torch.cuda.ExternalStream(device.stream.value)
        torch.cuda.set_stream(stream)
        torch.set_grad_enabled(False)
        self.facts = {
            "torch": torch.__version__,
            "torch_cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }

    def put(self, array: Array) -> Any:
        """A copy of an array on the device."""
        return self.torch.from_numpy(array).cuda()

    def captured(self, work: Work) -> Work:
        """Launches of a work as one graph.

        The graph reads the work's operands, so they live as long as what is returned: the next
        capture gives memory that PyTorch has not in use back to the driver.
        """
        torch = self.torch
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        self._device.enter()

        def replay(_operands: Work = work) -> None:
            graph.replay()

        return replay

    def contender(self, *works: Work, captured: bool = True, **facts: Any) -> Contender:
        """A contender that works in PyTorch, with a work for each set of operands."""
        return Contender(works, self.captured if captured else None, facts)


def find_torch(device: Device, left_out: dict[str, str]) -> Torch | None:
    """PyTorch, or None, and its name is among what is left out."""
    try:
        return Torch(device)
    except (ImportError, OSError, RuntimeError) as error:
        left_out["torch"] = brief(error)
        return None


def product_peers(torch: Torch, a: Array, w: Array, zeros: float, sets: int) -> dict[str, Make]:
    """A W, dense and by libraries for sparse matrices, whose conversion is timed but for `-made`.

    Args:
        torch: PyTorch.
        a: The operand with zeros.
        w: The other.
        zeros: Share of zeros.
        sets: Copies of the operands, which take turns.
    """
    t = torch.torch

    def operands() -> list[tuple[Any, Any]]:
        return [(torch.put(a), torch.put(w)) for _ in range(sets)]

    def cublas() -> Contender:
        out = t.empty((len(a), w.shape[1]), dtype=t.float16, device="cuda")
        works = [partial(t.mm, x, y, out=out) for x, y in operands()]
        _expect_product(torch, works[0](), a, w)
        return torch.contender(*works)

    def csr() -> Contender:
        works = [lambda x=x, y=y: t.mm(x.to_sparse_csr(), y) for x, y in operands()]
        _expect_product(torch, works[0](), a, w)
        return torch.contender(*works, captured=False)

    def csr_made() -> Contender:
        works = [partial(t.mm, x.to_sparse_csr(), y) for x, y in operands()]
        _expect_product(torch, works[0](), a, w)
        return torch.contender(*works, captured=False)

    def bsr_made() -> Contender:
        triton = importlib.import_module("triton")
        of_blocks = importlib.import_module("torch.sparse._triton_ops").bsr_dense_mm
        works = [partial(of_blocks, x.to_sparse_bsr((32, 32)), y) for x, y in operands()]
        _expect_product(torch, works[0](), a, w)
        return torch.contender(*works, captured=False, triton=triton.__version__)

    makers: dict[str, Make] = {"cublas": cublas}
    if zeros >= SPARSE_FROM:
        makers |= {"cusparse-csr": csr, "cusparse-csr-made": csr_made}
        makers["triton-bsr32-made"] = bsr_made
    return makers


def _expect_product(torch: Torch, got: Any, a: Array, w: Array) -> None:
    """A peer computes what we do: some rows of its answer."""
    rows = np.random.default_rng(6).permutation(len(a))[:16]
    want = a[rows].astype(np.float64) @ w.astype(np.float64)
    found = got[torch.torch.from_numpy(rows).cuda()].cpu().numpy().astype(np.float64)
    error = float(np.linalg.norm(found - want) / max(np.linalg.norm(want), 1e-30))
    if not error <= PEER_TOLERANCE:
        raise AssertionError(f"its error is {error:.1e}")


def attention_peers(
    torch: Torch, lengths: list[int], longest: int, heads: int, width: int, sets: int
) -> dict[str, Make]:
    """Attention over sequences: padded, nested, and packed, each over so many sets of operands."""
    t = torch.torch
    attend = t.nn.functional.scaled_dot_product_attention
    batch, total = len(lengths), sum(lengths)

    def random(*shape: int) -> Any:
        return t.randn(shape, dtype=t.float16, device="cuda")

    def each(one: Callable[[], Work], *, captured: bool = True) -> Make:
        return lambda: torch.contender(*(one() for _ in range(sets)), captured=captured)

    def padded() -> Work:
        q, k, v = (random(batch, heads, longest, width) for _ in range(3))
        live = t.arange(longest, device="cuda")[None] < t.tensor(lengths, device="cuda")[:, None]
        return partial(attend, q, k, v, attn_mask=live[:, None, None, :])

    def padded_unmasked() -> Work:
        return partial(attend, *(random(batch, heads, longest, width) for _ in range(3)))

    def offsets() -> Any:
        ends = t.tensor([0, *lengths], device="cuda", dtype=t.int32)
        return t.cumsum(ends, 0, dtype=t.int32)

    def nested() -> Work:
        at = offsets().to(t.int64)

        def one() -> Any:
            values = random(total, heads, width)
            jagged = t.nested.nested_tensor_from_jagged(
                values, at, min_seqlen=1, max_seqlen=longest
            )
            return jagged.transpose(1, 2)

        return partial(attend, *(one() for _ in range(3)))

    def packed() -> Work:
        at = offsets()
        q, k, v = (random(total, heads, width) for _ in range(3))
        flash = t.ops.aten._flash_attention_forward
        return partial(flash, q, k, v, at, at, longest, longest, 0.0, False, False)

    return {
        "sdpa-padded": each(padded),
        "sdpa-padded-no-mask": each(padded_unmasked),
        "sdpa-nested": each(nested, captured=False),
        "flash-varlen": each(packed),
    }
