"""What a batch costs at least: arithmetic and weights of an encoder, from the tokens that exist."""

from collections.abc import Iterable

from benchmarks.cases import ModelConfig


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
