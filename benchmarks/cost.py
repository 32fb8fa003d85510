"""What a call costs at least: arithmetic and weights, with and without what can be skipped."""

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.cases import ModelConfig
from models.experts import ExpertsConfig
from models.mixtral import MixtralConfig

#: Weights of fewer bytes may still be in the last cache when the next call reads them.
LAST_CACHE = 32 << 20


@dataclass(frozen=True, slots=True)
class Cost:
    """Least work of one call.

    Args:
        flops: Multiplications and additions of its products.
        read_bytes: Weights that come from memory.
    """

    flops: float
    read_bytes: float = 0.0

    def seconds(self, limits: dict[str, float]) -> float:
        """Least time on a core with these limits of `benchmarks.machine.measure_limits`."""
        reading = self.read_bytes / limits["read_gbytes_per_s"]
        return max(self.flops / limits["fma_gflops"], reading) / 1e9


def flops(config: ModelConfig, lengths: Iterable[int]) -> int:
    """Multiplications and additions of the matrix products over sequences of these lengths.

    Args:
        config: The encoder.
        lengths: Tokens of each sequence; the padded length of each for the cost of a dense engine.
    """
    per_token = 2 * (4 * config.hidden**2 + 2 * config.hidden * config.ffn)
    per_pair = 2 * 2 * config.hidden
    return config.layers * sum(n * per_token + n * n * per_pair for n in lengths)


def weight_bytes(config: ModelConfig) -> int:
    """Bytes of the f32 weights that every call reads: the encoder layers without the tables."""
    return 4 * config.layers * (4 * config.hidden**2 + 2 * config.hidden * config.ffn)


def blocks_cost(
    config: ModelConfig, tokens: int, live: float = 1.0, live_columns: float = 1.0
) -> Cost:
    """The feed-forward blocks of a model alone.

    Args:
        config: The model.
        tokens: Rows of every product.
        live: Share of the hidden values that are not zero.
        live_columns: Share of the hidden neurons that are not zero for every token.
    """
    weights = config.layers * config.hidden * config.ffn
    cold = 2 * 4 * weights > LAST_CACHE
    return Cost(2 * tokens * weights * (1 + live), 4 * weights * (1 + live_columns) * cold)


def layers_cost(rows: int, shapes: Iterable[tuple[int, int]], live: float = 1.0) -> Cost:
    """Products behind each other, of a share of their weights or of their input; weights stay warm.

    Args:
        rows: Rows of every product.
        shapes: [in, out] of each.
        live: Share of the terms that are not zero.
    """
    return Cost(2 * rows * live * sum(k * n for k, n in shapes))


def experts_cost(config: ExpertsConfig, rows: int, hit: int) -> Cost:
    """A layer of experts.

    Args:
        config: The layer.
        rows: Of all experts together.
        hit: Experts with at least one row.
    """
    weights = config.hidden * config.ffn * (3 if config.gated else 2)
    cold = 4 * weights * config.experts > LAST_CACHE
    return Cost(2 * rows * weights, 4 * weights * hit * cold)


def mixtral_cost(config: MixtralConfig, lengths: Iterable[int]) -> Cost:
    """A decoder with experts, over sequences of these lengths; a query reads half of the keys."""
    sizes = list(lengths)
    attention = sum(8 * n * config.hidden**2 + 2 * n * n * config.hidden for n in sizes)
    rows, all_of_them = sum(sizes) * config.experts.top, config.experts.experts
    of_experts = experts_cost(config.experts, rows, all_of_them)
    reading = of_experts.read_bytes + 4 * 4 * config.hidden**2
    return Cost(config.layers * (attention + of_experts.flops), config.layers * reading)
