"""What a kernel variant is, as a pure value, and how its micro-tile follows from its dense tile."""

from dataclasses import dataclass

from pitc.codegen.targets import LINE_BYTES, Target

ITEM_BYTES = {"float32": 4, "int32": 4, "int8": 1}


@dataclass(frozen=True, slots=True)
class Tile:
    """A box of iterations: an extent for each axis, in loop order.

    Args:
        extents: Pairs of axis name and extent, every extent at least 1.
    """

    extents: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.extents]
        if len(set(names)) != len(names):
            raise ValueError(f"axis named twice in tile {self.extents}")
        if any(extent < 1 for _, extent in self.extents):
            raise ValueError(f"tile extents must be at least 1, got {self.extents}")

    @classmethod
    def of(cls, **extents: int) -> "Tile":
        """Make a tile from keyword arguments."""
        return cls(tuple(extents.items()))

    @property
    def axes(self) -> tuple[str, ...]:
        """The axis names."""
        return tuple(name for name, _ in self.extents)

    def __getitem__(self, axis: str) -> int:
        """The extent along an axis."""
        for name, extent in self.extents:
            if name == axis:
                return extent
        raise KeyError(axis)


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel family at one tile, element type and target.

    Args:
        family: Name of the family.
        dense_tile: What one kernel step computes at full speed.
        micro_tile: The smallest piece of the sparse operand that is kept or skipped as a whole.
        dtype: Element type.
        target: CPU level.
    """

    family: str
    dense_tile: Tile
    micro_tile: Tile
    dtype: str
    target: Target

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_BYTES:
            raise ValueError(f"unknown element type {self.dtype!r}")
        if missing := set(self.micro_tile.axes) - set(self.dense_tile.axes):
            raise ValueError(f"micro-tile axes {sorted(missing)} are not in the dense tile")


def derive_micro_tile(
    dense_tile: Tile, operand: tuple[str, ...], pit_axis: str, dtype: str = "float32"
) -> Tile:
    """The micro-tile of an operand that is gathered along a PIT axis.

    Along the PIT axis the pieces of a dense tile may come from anywhere, so the micro-tile is 1
    there and equals the dense tile on the operand's other axes. Along memory (the operand's last
    axis) it is never below one cache line: a shorter read would fetch the line all the same.

    Args:
        dense_tile: The tile that the gathered pieces fill.
        operand: Axes of the sparse operand in memory order, the contiguous one last.
        pit_axis: The permuted axis; must be one of `operand`.
        dtype: Element type of the operand.

    Returns:
        The micro-tile over the axes of `operand`.

    Raises:
        ValueError: `pit_axis` is not an axis of the operand, or an axis is not in the dense tile.
    """
    if pit_axis not in operand:
        raise ValueError(f"PIT axis {pit_axis!r} is not an axis of the operand {operand}")
    if missing := set(operand) - set(dense_tile.axes):
        raise ValueError(f"operand axes {sorted(missing)} are not in the dense tile")
    extents = {axis: 1 if axis == pit_axis else dense_tile[axis] for axis in operand}
    line = LINE_BYTES // ITEM_BYTES[dtype]
    extents[operand[-1]] = max(extents[operand[-1]], line)
    return Tile(tuple(extents.items()))
