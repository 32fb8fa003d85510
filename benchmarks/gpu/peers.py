"""What else multiplies and attends on a GPU: PyTorch (cuBLAS, cuSPARSE, its attention), Triton.

PyTorch works in our stream, on copies of our operands. A peer that is missing, or fails, is named
in `left_out` and nothing is said of its time.
"""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.gpu.driver import Array, Device
from benchmarks.gpu.timing import Contender, Work, brief

SPARSE_FROM = 0.9
"""Share of zeros from which libraries for sparse matrices compete."""

Make = Callable[[], Contender]


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
        """Launches of a work as one graph."""
        torch = self.torch
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        self._device.enter()
        replay: Work = graph.replay
        return replay

    def contender(self, name: str, work: Work, *, captured: bool = True, **facts: Any) -> Contender:
        """A contender that works in PyTorch."""
        return Contender(name, work, self.captured if captured else None, facts)


def find_torch(device: Device, left_out: dict[str, str]) -> Torch | None:
    """PyTorch, or None, and its name is among what is left out."""
    try:
        return Torch(device)
    except (ImportError, OSError, RuntimeError) as error:
        left_out["torch"] = brief(error)
        return None


def made(makers: dict[str, Make], left_out: dict[str, str]) -> Iterator[Contender]:
    """The contenders that can be made."""
    for name, make in makers.items():
        try:
            yield make()
        except Exception as error:
            left_out[name] = brief(error)


def product_peers(torch: Torch, a: Array, w: Array, zeros: float) -> dict[str, Make]:
    """A W, dense and by libraries for sparse matrices, whose conversion is timed but for `-made`.

    Args:
        torch: PyTorch.
        a: The operand with zeros.
        w: The other.
        zeros: Share of zeros.
    """
    t = torch.torch
    left, right = torch.put(a), torch.put(w)
    out = t.empty((len(a), w.shape[1]), dtype=left.dtype, device="cuda")
    makers: dict[str, Make] = {
        "cublas": lambda: torch.contender("cublas", lambda: t.mm(left, right, out=out))
    }
    if zeros < SPARSE_FROM:
        return makers

    def csr() -> Contender:
        return torch.contender(
            "cusparse-csr", lambda: t.mm(left.to_sparse_csr(), right), captured=False
        )

    def csr_made() -> Contender:
        sparse = left.to_sparse_csr()
        return torch.contender("cusparse-csr-made", lambda: t.mm(sparse, right), captured=False)

    def bsr_made() -> Contender:
        triton = importlib.import_module("triton")
        of_blocks = importlib.import_module("torch.sparse._triton_ops").bsr_dense_mm
        blocks = left.to_sparse_bsr((32, 32))
        return torch.contender(
            "triton-bsr32-made",
            lambda: of_blocks(blocks, right),
            captured=False,
            triton=triton.__version__,
        )

    return {
        **makers,
        "cusparse-csr": csr,
        "cusparse-csr-made": csr_made,
        "triton-bsr32-made": bsr_made,
    }


def attention_peers(
    torch: Torch, lengths: list[int], longest: int, heads: int, width: int
) -> dict[str, Make]:
    """Attention over sequences: padded, nested, and packed."""
    t = torch.torch
    attend = t.nn.functional.scaled_dot_product_attention
    batch, total = len(lengths), sum(lengths)

    def random(*shape: int) -> Any:
        return t.randn(shape, dtype=t.float16, device="cuda")

    def padded() -> Contender:
        q, k, v = (random(batch, heads, longest, width) for _ in range(3))
        live = t.arange(longest, device="cuda")[None] < t.tensor(lengths, device="cuda")[:, None]
        mask = live[:, None, None, :]
        return torch.contender("sdpa-padded", lambda: attend(q, k, v, attn_mask=mask))

    def padded_unmasked() -> Contender:
        q, k, v = (random(batch, heads, longest, width) for _ in range(3))
        return torch.contender("sdpa-padded-no-mask", lambda: attend(q, k, v))

    def offsets() -> Any:
        ends = t.tensor([0, *lengths], device="cuda", dtype=t.int32)
        return t.cumsum(ends, 0, dtype=t.int32)

    def nested() -> Contender:
        at = offsets().to(t.int64)

        def one() -> Any:
            values = random(total, heads, width)
            jagged = t.nested.nested_tensor_from_jagged(
                values, at, min_seqlen=1, max_seqlen=longest
            )
            return jagged.transpose(1, 2)

        q, k, v = (one() for _ in range(3))
        return torch.contender("sdpa-nested", lambda: attend(q, k, v), captured=False)

    def packed() -> Contender:
        at = offsets()
        q, k, v = (random(total, heads, width) for _ in range(3))
        flash = t.ops.aten._flash_attention_forward

        def work() -> None:
            flash(q, k, v, at, at, longest, longest, 0.0, False, False)

        return torch.contender("flash-varlen", work)

    return {
        "sdpa-padded": padded,
        "sdpa-padded-no-mask": padded_unmasked,
        "sdpa-nested": nested,
        "flash-varlen": packed,
    }
