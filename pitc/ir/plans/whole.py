"""Operations of PIT nodes that know no live points: what they read is packed, or whole."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pitc.ir.formula import KINDS
from pitc.ir.plans.base import (
    ANY,
    FLOAT32,
    INT64,
    PRICES,
    WEIGHT,
    KernelPlan,
    Limits,
    Operand,
    Plan,
    RoundingPlan,
    Table,
)
from pitc.ir.plans.kinds import EXTENT, ElementType, Flag, Listed, Name, Real, Whole, Word


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterProducts(KernelPlan):
    """C = A^T @ B: kernel `dense`; perhaps only where a mask is not 0, and 0 elsewhere: `listed`.

    The sum of outer products of rows of A `[K, M]` and of B `[K, N]`, sizes that are known when the
    node runs.

    Args:
        masked: There is a mask.
    """

    op = "outer_products"
    machines = ("cpu",)
    all_operands = (Operand("a"), Operand("b"), Operand("mask", ANY, ("masked",)))

    masked: Annotated[bool, Flag()]
    dtype: Annotated[str, Word(("float32",))] = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped(RoundingPlan):
    """C[t, j, m] = A[t, j, m] @ B[group[t, j]]: kernel `dense` for the rows of each group.

    A is `[T, J, M, K]`, or `[T, 1, M, K]` where all j share its rows. B has a matrix for each
    group, as panels: `[groups * P, K, NR]`. A group below 0 counts from the end. On GPUs the
    kernels `counts` and `rows` list the rows of each group.

    Args:
        groups: How many matrices.
        k: Terms of a sum.
        n: Columns of C.
        skips: Zeros of A are skipped, in those groups where that pays.
        prices: What that costs.
    """

    op = "grouped"
    only: ClassVar[Limits] = {
        "cpu": {"dtype": "float32"},
        "cuda": {"rounded": "", "skips": "0"},
    }
    all_operands = (Operand("a"), Operand("group", INT64), Operand("b", WEIGHT))

    groups: Annotated[int, EXTENT]
    k: Annotated[int, EXTENT]
    n: Annotated[int, EXTENT]
    skips: Annotated[bool, Flag()] = False
    prices: Annotated[Table, PRICES] = ()
    dtype: Annotated[str, ElementType()] = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm(KernelPlan):
    """Norms of rows, y = x / sqrt(mean of x^2 + epsilon) * gamma + beta: kernel `norm`.

    It gives y as float32, and rounded to bfloat16; what is read by no node is not written.

    Args:
        n: Columns of a row.
        epsilon: Above the mean, float32.
        centred: The mean of a row is subtracted from it before.
        bias: There is a beta.
    """

    op = "norm"
    machines = ("cpu",)
    all_operands = (
        Operand("x"),
        Operand("gamma", FLOAT32),
        Operand("beta", FLOAT32, ("bias",)),
    )
    outputs = 2

    n: Annotated[int, EXTENT]
    epsilon: Annotated[float, Real()]
    centred: Annotated[bool, Flag()]
    bias: Annotated[bool, Flag()]
    dtype: Annotated[str, Word(("float32",))] = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Elementwise(KernelPlan):
    """What elementwise operators compute together, in one pass: kernel `elementwise`.

    Args:
        kinds: What operands are, x0 and so on.
        columns: For each result 1 where it has one number for each row, else 0.
        formula: As text (`pitc.ir.formula`).
        by_rows: Results depend on which elements are of one row.
    """

    op = "elementwise"

    kinds: Annotated[tuple[str, ...], Listed(Word(KINDS))]
    columns: Annotated[tuple[int, ...], Listed(Whole(0, 1))]
    formula: Annotated[str, Name()]
    by_rows: Annotated[bool, Flag()]
    dtype: Annotated[str, Word(("float32",))] = "float32"

    @property
    def operands(self) -> dict[str, Operand]:
        """Its operands, by name."""
        return {f"x{i}": Operand(f"x{i}", ANY) for i in range(len(self.kinds))}

    @property
    def output_count(self) -> int:
        """How many outputs it has."""
        return len(self.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseProduct(Plan):
    """C = A @ B, of which A holds few elements that are not 0: only these are multiplied.

    A is `[.., K]`, B `[K, n]` and C `[.., n]`, sizes that are known when the node runs.

    Args:
        turned: A lies as `[K, ..]`.
    """

    op = "sparse_product"
    machines = ("cpu",)
    all_operands = (Operand("a", FLOAT32), Operand("b", FLOAT32))

    turned: Annotated[bool, Flag()]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRows(Plan):
    """Updates added to rows `[n, columns]` that indices name, in their order: to zeros, or to those
    of `start`.

    Args:
        n: Rows of the result; None: as many as `size` says when the node runs, or `start` has.
        sized: There is a `size`.
        started: There is a `start`.
        scaled: Each update is multiplied by its number of `factors`.
    """

    op = "add_rows"
    machines = ("cpu",)
    all_operands = (
        Operand("indices", INT64),
        Operand("updates", FLOAT32),
        Operand("size", INT64, ("sized",)),
        Operand("start", FLOAT32, ("started",)),
        Operand("factors", FLOAT32, ("scaled",)),
    )

    n: Annotated[int | None, EXTENT] = None
    sized: Annotated[bool, Flag()] = False
    started: Annotated[bool, Flag()] = False
    scaled: Annotated[bool, Flag()] = False
