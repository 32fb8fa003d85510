"""Large weights are left out of what protobuf parses: it would copy them, and each look again.

    graph { node.. initializer { dims: 768 dims: 768 raw_data: 2,359,296 bytes } }
    ->  graph { node.. initializer { dims: 768 dims: 768 raw_data: 0 bytes } }, {0: those bytes}

The wire format: a field is a number and a type in one varint, then the value; of the types, bytes
and messages begin with their length (protobuf.dev, "Encoding"). What is read here in another way
than a parser would is not left out: a graph or data that come in two parts, or anything malformed.
"""

import mmap
from collections.abc import Iterator

Content = bytes | mmap.mmap

GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9
"""Field numbers in `ModelProto`, `GraphProto` and `TensorProto` of onnx.proto."""
LARGE_BYTES = 1024
"""Smaller weights stay."""

_VARINT, _I64, _LENGTH, _I32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


def without_weights(content: Content) -> tuple[bytes, dict[int, memoryview]] | None:
    """A serialised model without the raw data of large initializers of its main graph.

    Args:
        content: The model, or a file of it that is mapped: what is left out is not read.

    Returns:
        The same model with no bytes in those; and by number of the initializer, its bytes in
        `content`. None where the content is not understood.
    """
    data = memoryview(content)
    try:
        top = _fields(content, 0, len(content))
        ((_, kind, tag, start, end),) = (field for field in top if field[0] == GRAPH)
        if kind != _LENGTH:
            return None
        parts, weights = _slim_graph(data, content, start, end)
    except (ValueError, IndexError):
        return None
    length = sum(map(len, parts))
    whole = [data[:tag], _prefix(GRAPH, length), *parts, data[end:]]
    return b"".join(whole), weights


def _slim_graph(
    data: memoryview, content: Content, start: int, end: int
) -> tuple[list[memoryview | bytes], dict[int, memoryview]]:
    """The parts of a graph, and what was left out between them."""
    parts: list[memoryview | bytes] = []
    weights: dict[int, memoryview] = {}
    done, count = start, 0
    for number, kind, tag, inner, behind in _fields(content, start, end):
        if (number, kind) != (INITIALIZER, _LENGTH):
            continue
        if behind - inner >= LARGE_BYTES:
            raw = [f for f in _fields(content, inner, behind) if f[0] == RAW_DATA]
            if len(raw) == 1 and raw[0][4] - raw[0][3] >= LARGE_BYTES:  # no number is as long
                _, _, raw_tag, raw_start, raw_end = raw[0]
                tensor: list[memoryview | bytes] = [
                    data[inner:raw_tag],
                    _prefix(RAW_DATA, 0),
                    data[raw_end:behind],
                ]
                parts += [data[done:tag], _prefix(INITIALIZER, sum(map(len, tensor))), *tensor]
                weights[count], done = data[raw_start:raw_end], behind
        count += 1
    return [*parts, data[done:end]], weights


def _fields(content: Content, place: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Of each field of a message its number, type, and where it, its value and the next one begin.

    Raises:
        ValueError: It is malformed, or of a type that ONNX does not use.
        IndexError: It is cut off.
    """
    while place < end:
        tag = place
        key, place = _varint(content, place)
        number, kind = key >> 3, key & 7
        if kind == _LENGTH:
            length, place = _varint(content, place)
            behind = place + length
        elif kind == _VARINT:
            behind = _varint(content, place)[1]
        elif kind in (_I32, _I64):
            behind = place + (4 if kind == _I32 else 8)
        else:
            raise ValueError(f"wire type {kind}")
        if behind > end:
            raise ValueError("a field is cut off")
        yield number, kind, tag, place, behind
        place = behind


def _varint(content: Content, place: int) -> tuple[int, int]:
    """A number of 7 bits in each byte, the lowest first, and the place behind it."""
    value = 0
    for k in range(_LONGEST_VARINT):
        byte = content[place + k]
        value |= (byte & 0x7F) << 7 * k
        if byte < 0x80:
            return value, place + k + 1
    raise ValueError("a varint is too long")


def _prefix(number: int, length: int) -> bytes:
    """What stands before the value of a field that has a length."""
    out = bytearray()
    for value in (number << 3 | _LENGTH, length):
        while value >= 0x80:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)
    return bytes(out)
