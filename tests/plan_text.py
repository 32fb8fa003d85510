"""Plans as plain keys and values: also those that no compiler writes."""

from dataclasses import dataclass

from pitc.ir.plan import PLAN_VERSION

Field = int | float | str | tuple[int, ...] | tuple[str, ...]


def _text(value: Field) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return value.hex() if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class Plan:
    """An operation and its other fields, as the runtime reads them."""

    op: str
    fields: tuple[tuple[str, Field], ...] = ()

    def text(self) -> str:
        fields = dict(self.fields) | {"op": self.op}
        lines = [f"{key}={_text(fields[key])}" for key in sorted(fields)]
        return "\n".join([f"pitc-plan {PLAN_VERSION}", *lines, ""])
