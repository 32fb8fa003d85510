"""The operations of PIT nodes, as typed plans: `docs/plans.md` says what each computes.

    Detect(rank=2, padding="mask").text()    pitc-plan 9, op=detect, padding=mask, rank=2
    parse(text)                              Detect(rank=2, padding="mask")

One class is one operation: its operands in order, and its fields, each with its type. Text, parser
and checks follow from it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar, Self

from pitc.ir.plan import PLAN_VERSION
from pitc.ir.plans.base import (
    ANY,
    FLOAT32,
    INT32,
    INT64,
    OWN,
    PRICES,
    ROUNDED,
    WEIGHT,
    KernelPlan,
    Kernels,
    Limits,
    Operand,
    Plan,
    StoringPlan,
    Table,
    WrongPlanError,
)
from pitc.ir.plans.kinds import (
    EXTENT,
    FileName,
    Flag,
    Identity,
    Layout,
    Listed,
    Name,
    Place,
    Read,
    Real,
    Symbols,
    Whole,
    Word,
    Words,
)
from pitc.ir.plans.program import MOST_BLOCK, ORDERS, PROGRAMS, TESTS, Tests
from pitc.ir.plans.whole import (
    AddRows,
    Elementwise,
    Grouped,
    Norm,
    OuterProducts,
    SparseProduct,
)
from pitc.ir.seen import NO_PAIRS

BLOCK = Whole(1, MOST_BLOCK)
COUNT = Whole(0, 1 << 62)
HEADS, HEAD, GROUP = Whole(1, 1 << 16), Whole(0, 1 << 16), Whole(2, 1 << 16)
STEPS = Whole(0, (1 << 16) - 1)
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "gelu_quick", "silu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Detect(Plan):
    """The live points of a domain: rows, coordinates, and where sequences begin."""

    op = "detect"
    machines = ("cpu",)
    all_operands = (Operand("live", ANY), Operand("padding", ANY, ("padding",)))
    outputs = 3

    rank: Annotated[int, Whole(1, 8)]
    padding: Annotated[str | None, Name()] = None


_POINTS = (Operand("rows", INT32), Operand("coords", INT32), Operand("live", ANY))


@dataclass(frozen=True, slots=True, kw_only=True)
class Move(KernelPlan):
    """A move of rows of words: kernel `move`."""

    dims: Annotated[tuple[str, ...], Layout()]
    dtype: Annotated[str, Word(("int32", "int8"))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack(Move):
    """SRead: one row for each live point."""

    op = "pack"
    all_operands = (Operand("x", ANY), *_POINTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpack(Move):
    """SWrite: rows back to their places, 0 elsewhere."""

    op = "unpack"
    all_operands = (Operand("packed", ANY, packed_by="rows"), *_POINTS)


_MOVED = ("gather", "scatter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract(StoringPlan):
    """C = activation(A @ B + bias) + residual, of rows that are listed, or all.

    Args:
        k: Terms of a sum.
        n: Columns of C.
        gather: Rows of `a` are listed.
        scatter: Rows of C are.
        inner: A is the ReLU of a product of `a` by `b1`, and so many columns has `a`; None: A is
            `a`.
        inner_bias: That product has a bias.
        input_relu: A is max(`a`, 0).
        right: How B lies: in panels, or as [k, n] or [n, k], computed when the model runs.
        factor: B is `b` times another matrix, element by element: 1; 2 where `b` is a constant of
            finite numbers, so that B is 0 where the factor is.
        tiles: C is computed only where `mask` is not 0, and 0 elsewhere.
        rounded: B is stored so, in pairs of rows, and A is rounded where kernels multiply such
            numbers.
        stored: `a`, or C, or both.
        skips: Zeros are skipped: of the mask if there is one, of B where it is computed, else of A.
        prices: What that costs.
    """

    op = "contract"
    only: ClassVar[Limits] = {
        "cpu": {"dtype": "float32"},
        "cuda": {
            **{"bias": "1", "input_relu": "0", "right": "panels", "rounded": "", "tiles": "0"},
            **{"stored": ""},
        },
    }
    all_operands = (
        Operand("a", ROUNDED),
        Operand("b1", OWN, ("inner",)),
        Operand("bias1", FLOAT32, ("inner_bias",)),
        Operand("b", WEIGHT),
        Operand("factor", OWN, ("factor",)),
        Operand("mask", ANY, ("tiles",)),
        Operand("bias", FLOAT32, ("bias",)),
        Operand("residual", OWN, ("residual",)),
        Operand("rows", INT32, _MOVED),
        Operand("live", ANY, _MOVED),
    )

    activation: Annotated[str, Word(ACTIVATIONS)]
    bias: Annotated[bool, Flag()]
    k: Annotated[int, EXTENT]
    n: Annotated[int, EXTENT]
    residual: Annotated[bool, Flag()]
    gather: Annotated[bool, Flag()] = False
    scatter: Annotated[bool, Flag()] = False
    inner: Annotated[int | None, EXTENT] = None
    inner_bias: Annotated[bool, Flag()] = False
    input_relu: Annotated[bool, Flag()] = False
    right: Annotated[str, Word(("panels", "kn", "nk"))] = "panels"
    factor: Annotated[int, Whole(0, 2)] = 0
    tiles: Annotated[bool, Flag()] = False
    stored: Annotated[tuple[str, ...] | None, Words(("a", "result"))] = None
    skips: Annotated[bool, Flag()] = False
    prices: Annotated[Table, PRICES] = ()

    @property
    def columns(self) -> int:
        """Of `a`."""
        return self.k if self.inner is None else self.inner


def _tests(keys: str, queries: str, pairs: str) -> tuple[Operand, ...]:
    """What tests of pairs look at, by the fields that count those of flags."""
    return (
        Operand("position_tests", INT64, ("positions",)),
        Operand("q_tables", INT64, ("tables",)),
        Operand("k_tables", INT64, ("tables",)),
        Operand("key_flags", ANY, (keys,)),
        Operand("query_flags", ANY, (queries,)),
        Operand("pair_flags", ANY, (pairs,)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs(Plan):
    """Which queries see which keys: for each 32 queries the keys that one of them sees.

    A program says which pairs are seen: steps on a stack of truth values, of which one is left. A
    step puts a test there, or joins what lies on top (`PROGRAM`). Tests are numbered: of positions
    first, then of tables, of keys, of queries and of pairs.

    Args:
        rank: Coordinates of a query, and of a key; the last one is its position.
        positions: Tests `x * query + y * key + z >= 0`, rows of `positions`.
        tables: Tests of a number of the query and one of the key, in `q_tables` and `k_tables`.
        orders: Of each table two bits, the first one's lowest: 0 for equal, 1 for less, 2 for less
            or equal, the query's number first.
        keys: Tests that hold at a key: not where `key_flags` are not 0.
        queries: At a query.
        pairs: At a pair.
        program: The steps.
        q_block: How many queries a flag of pairs is of, those of one block; None: of one.
        k_block: How many keys.
    """

    op = "pairs"
    machines = ("cpu",)
    together = (("q_block", "k_block"),)
    all_operands = (
        Operand("q_offsets", INT32),
        Operand("k_offsets", INT32),
        Operand("q_coords", INT32),
        Operand("k_coords", INT32),
        *_tests("keys", "queries", "pairs"),
    )
    outputs = 4

    rank: Annotated[int, Whole(1, 4)]
    positions: Annotated[int, TESTS]
    tables: Annotated[int, TESTS]
    orders: Annotated[int, ORDERS]
    keys: Annotated[int, TESTS]
    queries: Annotated[int, TESTS]
    pairs: Annotated[int, TESTS]
    program: Annotated[tuple[int, ...], PROGRAMS]
    q_block: Annotated[int | None, BLOCK] = None
    k_block: Annotated[int | None, BLOCK] = None


_PROGRAM = (
    *("program", "positions", "tables", "orders"),
    *("key_tests", "query_tests", "pair_tests"),
)


def _formula(plan: "Attention | AttentionGrad") -> str:
    """The program of a plan, as the name of a kernel says it; empty where there is none."""
    if plan.program is None:
        return ""
    counts = plan.positions, plan.tables, plan.key_tests, plan.query_tests, plan.pair_tests
    return Tests(*(n or 0 for n in (*counts, plan.orders))).text(plan.program)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(StoringPlan):
    """Softmax over the live keys of each sequence, and the sum of values by it: kernel `attention`.

    Args:
        d: Numbers of a query and of a key.
        dv: Of a value.
        heads: How many.
        scale: Of scores.
        bias: Scores have one.
        rounded: Queries, keys, weights and values are rounded where kernels multiply such numbers.
        stored: Which of queries, keys, values and the result.
        pairs: Queries see the keys that lists say.
        program: They see those that it says, of a GPU: a program as of `Pairs`.
        positions: Its tests of positions.
        tables: Of a number of the query and one of the key.
        orders: What these compare by.
        key_tests: Of keys.
        query_tests: Of queries.
        pair_tests: Of pairs.
        nan_to_zero: A row whose softmax is NaN is 0.
        no_keys_to_zero: A row without keys is.
        no_pairs: What a row that sees none of some keys is: NaN, as its softmax is; the mean of all
            values; or 0.
        q_head: The first head of queries in their buffer.
        k_head: Of keys.
        v_head: Of values.
        group: How many heads of queries share one of keys and of values; None: each has its own.
        whole: Keys and values lie as in a cache.
        sinks: How many numbers stand beside the scores of a row and have no value: one for all
            heads, or one for each.
        score_cap: What tanh(scores) is multiplied by, if scores are capped.
        score_step: What scores are rounded to multiples of, if they are.
        score_scale: What the step stands for.
        score_below: How many steps they go below 0.
        score_above: And above it.
        weight_step: The same of weights.
        weight_above: How many steps they have.
    """

    op = "attention"
    only: ClassVar[Limits] = {
        "cpu": {"dtype": "float32", "program": ""},
        "cuda": {
            "group": "",
            "pairs": "0",
            "sinks": "",
            "whole": "0",
            "score_cap": "",
            "score_step": "",
            "weight_step": "",
            "rounded": "",
            "stored": "",
        },
    }
    together = (
        ("score_step", "score_scale", "score_below", "score_above"),
        ("weight_step", "weight_above"),
        _PROGRAM,
    )
    all_operands = (
        Operand("q", ROUNDED, packed_by="q_offsets"),
        Operand("k", ROUNDED, packed_by="k_offsets"),
        Operand("v", ROUNDED, packed_by="k_offsets"),
        Operand("q_offsets", INT32),
        Operand("k_offsets", INT32),
        Operand("bias", FLOAT32, ("bias",)),
        Operand("q_coords", INT32, ("bias", "program")),
        Operand("k_coords", INT32, ("bias", "whole", "program")),
        Operand("sink", FLOAT32, ("sinks",)),
        Operand("live", ANY, ("whole",)),
        Operand("keys", INT32, ("pairs",)),
        Operand("seen_by", INT32, ("pairs",)),
        Operand("tiles", INT32, ("pairs",)),
        Operand("order", INT32, ("pairs",)),
        *_tests("key_tests", "query_tests", "pair_tests"),
    )

    d: Annotated[int, EXTENT]
    dv: Annotated[int, EXTENT]
    heads: Annotated[int, HEADS]
    scale: Annotated[float, Real()]
    bias: Annotated[bool, Flag()]
    nan_to_zero: Annotated[bool, Flag()]
    no_keys_to_zero: Annotated[bool, Flag()]
    stored: Annotated[tuple[str, ...] | None, Words(("q", "k", "v", "result"))] = None
    no_pairs: Annotated[str, Word(NO_PAIRS)] = "nan"
    pairs: Annotated[bool, Flag()] = False
    q_head: Annotated[int, HEAD] = 0
    k_head: Annotated[int, HEAD] = 0
    v_head: Annotated[int, HEAD] = 0
    group: Annotated[int | None, GROUP] = None
    whole: Annotated[bool, Flag()] = False
    sinks: Annotated[int | None, HEADS] = None
    score_cap: Annotated[float | None, Real()] = None
    score_step: Annotated[float | None, Real()] = None
    score_scale: Annotated[float | None, Real()] = None
    score_below: Annotated[int | None, STEPS] = None
    score_above: Annotated[int | None, STEPS] = None
    weight_step: Annotated[float | None, Real()] = None
    weight_above: Annotated[int | None, STEPS] = None
    program: Annotated[tuple[int, ...] | None, PROGRAMS] = None
    positions: Annotated[int | None, TESTS] = None
    tables: Annotated[int | None, TESTS] = None
    orders: Annotated[int | None, ORDERS] = None
    key_tests: Annotated[int | None, TESTS] = None
    query_tests: Annotated[int | None, TESTS] = None
    pair_tests: Annotated[int | None, TESTS] = None

    @property
    def hides(self) -> bool:
        """Some queries do not see some keys."""
        return self.pairs or self.program is not None

    @property
    def sees(self) -> str:
        """The program, as the name of a kernel says it; empty where there is none."""
        return _formula(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionGrad(KernelPlan):
    """Gradients of `Attention` by queries, keys and values: kernel `attention_grad`.

    The operands are those of attention, with `g`, the gradient of its result.

    Args:
        d: Numbers of a query and of a key.
        dv: Of a value.
        heads: How many.
        scale: Of scores.
        bias: Scores have one.
        pairs: Queries see the keys that lists say.
        program: They see those that it says, of a GPU: a program as of `Pairs`.
        positions: Its tests of positions.
        tables: Of a number of the query and one of the key.
        orders: What these compare by.
        key_tests: Of keys.
        query_tests: Of queries.
        pair_tests: Of pairs.
        floor: A row whose scores are all below it has no gradient: a mask has replaced them.
        no_pairs: What weights of a row that sees no key are: NaN, as its softmax is; or 0.
    """

    op = "attention_grad"
    only: ClassVar[Limits] = {
        "cpu": {"dtype": "float32", "program": ""},
        "cuda": {"dtype": "float32", "pairs": "0"},
    }
    together = (_PROGRAM,)
    all_operands = (
        Operand("q", packed_by="q_offsets"),
        Operand("k", packed_by="k_offsets"),
        Operand("v", packed_by="k_offsets"),
        Operand("q_offsets", INT32),
        Operand("k_offsets", INT32),
        Operand("bias", FLOAT32, ("bias",)),
        Operand("q_coords", INT32, ("bias", "program")),
        Operand("k_coords", INT32, ("bias", "program")),
        Operand("keys", INT32, ("pairs",)),
        Operand("seen_by", INT32, ("pairs",)),
        Operand("tiles", INT32, ("pairs",)),
        Operand("order", INT32, ("pairs",)),
        *_tests("key_tests", "query_tests", "pair_tests"),
        Operand("g", packed_by="q_offsets"),
    )
    outputs = 3

    d: Annotated[int, EXTENT]
    dv: Annotated[int, EXTENT]
    heads: Annotated[int, HEADS]
    scale: Annotated[float, Real()]
    bias: Annotated[bool, Flag()]
    pairs: Annotated[bool, Flag()]
    floor: Annotated[float | None, Real()] = None
    no_pairs: Annotated[str, Word(("nan", "zero"))] = "nan"
    program: Annotated[tuple[int, ...] | None, PROGRAMS] = None
    positions: Annotated[int | None, TESTS] = None
    tables: Annotated[int | None, TESTS] = None
    orders: Annotated[int | None, ORDERS] = None
    key_tests: Annotated[int | None, TESTS] = None
    query_tests: Annotated[int | None, TESTS] = None
    pair_tests: Annotated[int | None, TESTS] = None

    @property
    def sees(self) -> str:
        """The program, as the name of a kernel says it; empty where there is none."""
        return _formula(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChooseChannels(Plan):
    """Whether few channels of some convolutions live."""

    op = "choose_channels"
    machines = ("cpu",)
    all_operands = (Operand("flags", FLOAT32),)

    nodes: Annotated[tuple[str, ...], Listed(Name())]
    channels: Annotated[tuple[int, ...], Listed(EXTENT)]
    places: Annotated[tuple[int | None, ...], Listed(Place(EXTENT.most))]
    weights: Annotated[tuple[int, ...], Listed(COUNT)]
    budget: Annotated[int, COUNT]


@dataclass(frozen=True, slots=True)
class Step:
    """One product of a region.

    Args:
        plan: What it does.
        reads: Its operands: `2`, an input of the region's node; `rows`, those that live; `s1`, what
            step 1 gives.
    """

    plan: Contract
    reads: tuple[str, ...]


_READS = Listed(Read())


LIVE_COUNTS = "live_counts"
"""The kernel that counts first where a mask is large; it comes with that of `points`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Region(Plan):
    """Products one behind the other, for the live points that a GPU finds: kernels `points` and
    `counts`.
    """

    op = "region"
    machines = ("cuda",)

    gives: Annotated[tuple[int, ...], Listed(Whole(0, 7))]
    kernels: Annotated[Kernels, Symbols()]
    library: Annotated[str, FileName()]
    steps: tuple[Step, ...]
    identity: Annotated[str | None, Identity()] = None

    def lines(self) -> dict[str, str]:
        """The text of each field, by key; those of step N begin with `stepN.`."""
        found = Plan.lines(self) | {"steps": str(len(self.steps))}
        for number, step in enumerate(self.steps):
            own = step.plan.lines() | {"reads": _READS.text(step.reads)}
            del own["library"], own["op"]
            found |= {f"step{number}.{key}": value for key, value in own.items()}
        return found

    @classmethod
    def of(cls, lines: Mapping[str, str]) -> Self:
        """The plan that fields say."""
        own, parts = dict[str, str](), dict[int, dict[str, str]]()
        for key, value in lines.items():
            match = re.fullmatch(r"step(\d)\.(\w+)", key)
            target = own if match is None else parts.setdefault(int(match[1]), {})
            target[key if match is None else match[2]] = value
        count = own.pop("steps", "")
        if sorted(parts) != list(range(len(parts))) or count != str(len(parts)):
            raise WrongPlanError(f"region: steps={count}, with fields of {sorted(parts)}")
        found = cls.values(own)
        steps = (_step(n, part, found["library"]) for n, part in sorted(parts.items()))
        return cls(steps=tuple(steps), **found)


def _step(number: int, lines: Mapping[str, str], library: str) -> Step:
    left = {"reads": "", **lines}
    if "library" in left:
        raise WrongPlanError(f"step {number}: its library is that of the region")
    try:
        reads = _READS.parse(left.pop("reads"))
        return Step(Contract.of(left | {"library": library}), reads)
    except ValueError as why:
        raise WrongPlanError(f"step {number}: {why}") from None


OPS: Mapping[str, type[Plan]] = {
    kind.op: kind
    for kind in (
        *(Detect, Pack, Unpack, Contract, Pairs, Attention, AttentionGrad, Norm),
        *(OuterProducts, Grouped, SparseProduct, Elementwise, AddRows, ChooseChannels, Region),
    )
}
"""Every operation, by name."""


@lru_cache(256)
def parse(text: str) -> Plan:
    """The plan that a text says.

    Raises:
        WrongPlanError: It says none.
    """
    first, *rest = text.split("\n")
    if first != f"pitc-plan {PLAN_VERSION}" or rest[-1:] != [""] or rest[:-1] != sorted(rest[:-1]):
        raise WrongPlanError(f"{text!r} is no plan")
    pairs = [line.partition("=") for line in rest[:-1]]
    found = {key: value for key, _, value in pairs}
    if len(found) < len(pairs) or not all(sign for _, sign, _ in pairs):
        raise WrongPlanError(f"{text!r} has fields without a value, or twice")
    kind = OPS.get(op := found.pop("op", ""))
    if kind is None:
        raise WrongPlanError(f"the operation {op!r} is unknown")
    return kind.of(found)
