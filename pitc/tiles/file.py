"""Tile table files: JSON with prices, what they were measured on, and the measured points."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, ValidationError, model_validator

from pitc.errors import ArtifactError, UsageError
from pitc.ir.tiles import FACTORS, HIGHEST_FACTOR, HIGHEST_PRICE, TileTable, VariantCost, Work
from pitc.ir.variants import FEATURES, VARIANTS
from pitc.options import TableLevel

SCHEMA = 1
MEND = "pitc tune makes a new one"

Price = Annotated[int, Field(ge=0, le=HIGHEST_PRICE)]
Prices = Annotated[list[Price], Field(min_length=len(FEATURES), max_length=len(FEATURES))]
Factor = Annotated[int, Field(ge=1, le=HIGHEST_FACTOR)]
Factors = Annotated[list[Factor], Field(min_length=FACTORS, max_length=FACTORS)]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Machine(_Record):
    """What prices hold for.

    Args:
        device: The CPU's own name.
        features: What it has of the flags that CPU levels need.
        caches: Sizes of its caches.
    """

    device: str
    features: list[str]
    caches: dict[str, str]


class Cost(_Record):
    """Prices of one variant, and how well they predict.

    Args:
        prices: Per feature.
        factors: By the shape of what lives (`pitc.ir.tiles`).
        error: Median and 95th percentile of the relative error over the measured points.
    """

    prices: Prices
    factors: Factors | None = None
    error: Annotated[list[float], Field(min_length=2, max_length=2)] | None = None


class Point(_Record):
    """One operand, and what the variants took on it.

    Args:
        n: Columns of the product.
        pattern: Shape of the live micro-tiles.
        density: Share of them that is live.
        work: The counts and sizes (`pitc.ir.tiles.Work`).
        us: Microseconds by variant.
    """

    n: int
    pattern: str
    density: float
    work: dict[str, Any]
    us: dict[str, PositiveFloat]

    def counted(self) -> Work:
        """The sizes and counts."""
        return Work(**self.work)


class Measured(_Record):
    """The table of one CPU level.

    Args:
        machine: Where it was measured.
        versions: Of pitc, TVM and ONNX Runtime.
        date: Day, UTC.
        protocol: How.
        costs: Prices by variant.
        points: What was measured; the table that comes with pitc is without.
        fitted: How many points prices were fitted to, where the file has not all of them.
    """

    machine: Machine
    versions: dict[str, str]
    date: str
    protocol: str
    costs: dict[str, Cost]
    points: list[Point]
    fitted: int | None = None

    @property
    def point_count(self) -> int:
        """How many points prices were fitted to."""
        return len(self.points) if self.fitted is None else self.fitted

    @model_validator(mode="before")
    @classmethod
    def _points_of_table(cls, body: Any) -> Any:
        points = body.get("points") if isinstance(body, dict) else None
        return body | {"points": _from_table(points)} if isinstance(points, dict) else body

    @model_validator(mode="after")
    def _complete(self) -> "Measured":
        if unknown := sorted(set(self.costs) - set(VARIANTS)):
            raise ValueError(f"unknown variant {unknown[0]!r}")
        if "dense" not in self.costs:
            raise ValueError("no prices of the variant 'dense'")
        return self


class TilesFile(_Record):
    """A whole file."""

    kind: Literal["pitc tile table"] = "pitc tile table"
    schema_version: int = SCHEMA
    unit: Literal["femtoseconds"] = "femtoseconds"
    features: list[str] = list(FEATURES)
    levels: dict[TableLevel, Measured]

    @model_validator(mode="after")
    def _ours(self) -> "TilesFile":
        if self.features != list(FEATURES):
            raise ValueError("its features are not those of this version")
        return self

    def table(self) -> TileTable:
        """The prices as values."""
        return TileTable({level: table_of(each) for level, each in self.levels.items()})

    def text(self) -> str:
        """The file; prices of a variant are one line, and each point a row of a table."""
        body = self.model_dump(mode="json")
        lines: list[str] = []

        def as_line(value: object) -> str:
            lines.append(json.dumps(value, separators=(",", ":")))
            return f"@{len(lines) - 1}@"

        for each in body["levels"].values():
            table = _as_table(each["points"])
            each["points"] = {
                "columns": as_line(table["columns"]),
                "rows": [as_line(row) for row in table["rows"]],
            }
            for cost in each["costs"].values():
                for name in ("prices", "factors"):
                    cost[name] = as_line(cost[name])
        text = json.dumps(body, indent=1)
        return re.sub(r'"@(\d+)@"', lambda found: lines[int(found[1])], text) + "\n"


def _as_table(points: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Points without a name at every number; columns of nested ones are `outer.inner`."""
    flat = [dict(_flat(point)) for point in points]
    columns = list(dict.fromkeys(name for each in flat for name in each))
    return {"columns": columns, "rows": [[each.get(c) for c in columns] for each in flat]}


def _flat(body: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in body.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _from_table(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Inverse of `_as_table`.

    Raises:
        ValueError: A row has another length than the columns.
    """
    points = []
    for row in table.get("rows", ()):
        point: dict[str, Any] = {}
        for column, value in zip(table.get("columns", ()), row, strict=True):
            *outer, name = str(column).split(".")
            at = point
            for each in outer:
                at = at.setdefault(each, {})
            if value is not None:
                at[name] = value
        points.append(point)
    return points


def table_of(measured: Measured) -> Mapping[str, VariantCost]:
    """The prices of one level as values."""
    return {
        variant: VariantCost(tuple(cost.prices), tuple(cost.factors or ()))
        for variant, cost in measured.costs.items()
    }


def point_of(n: int, pattern: str, density: float, work: Work, us: Mapping[str, float]) -> Point:
    """A point as it stands in a file."""
    rounded = {variant: max(round(t, 3), 0.001) for variant, t in us.items()}
    return Point(n=n, pattern=pattern, density=density, work=asdict(work), us=rounded)


def read_file(path: Path) -> TilesFile:
    """Read a tile table.

    Raises:
        UsageError: It cannot be read.
        ArtifactError: It is no tile table, damaged, or of a newer pitc.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", path=path) from error
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArtifactError("is no tile table: not JSON", path=path, hint=MEND) from error
    if not isinstance(body, dict) or body.get("kind") != TilesFile.model_fields["kind"].default:
        raise ArtifactError("is no tile table", path=path, hint=MEND)
    schema = body.get("schema_version")
    if schema != SCHEMA:
        text_ = f"its schema is {schema!r}, expected {SCHEMA}: it is of another version of pitc"
        raise ArtifactError(text_, path=path, hint=MEND)
    try:
        return TilesFile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the table"
        reason = first["msg"].removeprefix("Value error, ")
        raise ArtifactError(f"is damaged: {where}: {reason}", path=path, hint=MEND) from error
