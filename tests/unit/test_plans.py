"""Typed plans: text and back, and what is none."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pitc.ir.plans.base import Plan, WrongPlanError
from pitc.ir.plans.header import BY_HAND, header
from pitc.ir.plans.kinds import (
    FileName,
    Flag,
    Identity,
    Layout,
    Lines,
    Listed,
    Name,
    Place,
    Real,
    Symbols,
    Whole,
    Word,
    Words,
    kinds_of,
)
from pitc.ir.plans.ops import (
    OPS,
    Attention,
    AttentionGrad,
    ChooseChannels,
    Contract,
    Detect,
    Pack,
    Pairs,
    Region,
    Step,
    Unpack,
    parse,
)
from pitc.ir.plans.whole import AddRows, Elementwise, Grouped, Norm, OuterProducts, SparseProduct
from tools.plans import PAGE, page, table

ROOT = Path(__file__).resolve().parents[2]
NAMED: dict[str, Any] = {"kernels": (("dense", "k_1"), ("row", "k2")), "library": "kernels.so"}
PRODUCT: dict[str, Any] = {
    "activation": "gelu",
    "bias": True,
    "dtype": "float32",
    "k": 8,
    "n": 4,
    **NAMED,
}
ROWS: dict[str, Any] = {**PRODUCT, "residual": False, "gather": True, "scatter": False}
PRICES = (("cost_dense_v4", (1, 2)), ("shape_row_v3", (3,)))
FLAGS: dict[str, Any] = {"bias": True, "nan_to_zero": False, "no_keys_to_zero": True}
HEADS: dict[str, Any] = {"d": 64, "dv": 32, "heads": 2, "scale": 0.1, "dtype": "float32"}
STEPS: dict[str, Any] = {
    "score_step": 0.5,
    "score_scale": 2.0,
    "score_below": 3,
    "score_above": 4,
}
FORMULA: dict[str, Any] = {
    **{"positions": 1, "tables": 0, "orders": 0},
    **{"key_tests": 1, "query_tests": 0, "pair_tests": 0},
}
PLANS: dict[str, Plan] = {
    "detect": Detect(rank=2),
    "detect a padding mask": Detect(rank=1, padding="a mask/ö"),
    "pack": Pack(dims=("c0", "r", "l"), dtype="int8", **NAMED),
    "unpack": Unpack(dims=("0", "c7"), dtype="int32", **NAMED),
    "dense": Contract(**ROWS),
    "over zeros": Contract(**ROWS, prices=PRICES, input_relu=True, skips=True),
    "over ReLU": Contract(**ROWS, inner=16, skips=True),
    "by a computed matrix": Contract(**PRODUCT, residual=True, factor=2, right="nk", skips=True),
    "of rounded numbers": Contract(**ROWS, rounded="bfloat16", stored=("a", "result")),
    "by tiles of C": Contract(
        **{**PRODUCT, "activation": "none", "bias": False},
        residual=False,
        right="kn",
        skips=True,
        tiles=True,
    ),
    "pairs": Pairs(
        **{"rank": 2, "positions": 1, "keys": 0, "tables": 2, "orders": 9},
        **{"queries": 6, "pairs": 2, "program": (3, 13, 1, 2)},
    ),
    "attention": Attention(**HEADS, **FLAGS, **NAMED),
    "attention to listed keys": Attention(**HEADS, **FLAGS, **NAMED, pairs=True),
    "attention in steps": Attention(
        **HEADS, **FLAGS, **NAMED, whole=True, **STEPS, weight_step=0.25, weight_above=255
    ),
    "attention of rounded numbers": Attention(
        **HEADS, **FLAGS, **NAMED, rounded="bfloat16", stored=("k", "result")
    ),
    "attention_grad": AttentionGrad(**HEADS, **NAMED, bias=False, pairs=True, floor=-1e9),
    "attention_grad by a formula": AttentionGrad(
        **HEADS, **NAMED, **FORMULA, bias=False, pairs=False, no_pairs="zero", program=(3, 4, 0)
    ),
    "outer_products": OuterProducts(masked=True, **NAMED),
    "grouped": Grouped(groups=8, k=64, n=100, **NAMED),
    "grouped over ReLU": Grouped(groups=8, k=64, n=100, skips=True, prices=PRICES, **NAMED),
    "grouped, rounded": Grouped(groups=8, k=65, n=100, rounded="bfloat16", **NAMED),
    "elementwise": Elementwise(
        kinds=("whole", "row"),
        columns=(0, 1),
        formula="Mul:x0:x1,ReduceMean:s0,Sub:s0:s1;s2;s1",
        by_rows=True,
        **NAMED,
    ),
    "norm": Norm(n=64, epsilon=1e-5, centred=True, bias=False, **NAMED),
    "sparse_product": SparseProduct(turned=True),
    "add_rows": AddRows(n=100),
    "add_rows, as many as an operand says": AddRows(sized=True),
    "add_rows to those of an operand": AddRows(started=True),
    "add_rows, each times a number": AddRows(n=9, scaled=True),
    "choose_channels": ChooseChannels(
        nodes=("a,b", "c"), channels=(3, 4, 5), places=(None, 0, 4), weights=(1, 0), budget=7
    ),
    "region": Region(
        gives=(1,),
        steps=(
            Step(Contract(**ROWS), ("1", "2", "3", "rows", "0")),
            Step(Contract(**ROWS), ("s0", "4", "5", "rows", "0")),
        ),
        **NAMED,
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_text_says_its_plan(name: str) -> None:
    plan = PLANS[name]
    assert parse(plan.text()) == plan
    assert parse(plan.text()).text() == plan.text()


def test_every_operation_is_tried() -> None:
    assert {plan.op for plan in PLANS.values()} == set(OPS)


def test_the_text() -> None:
    assert PLANS["detect a padding mask"].text() == (
        "pitc-plan 9\nop=detect\npadding=a%20mask/%C3%B6\nrank=1\n"
    )
    assert "scale=0x1.999999999999ap-4\n" in PLANS["attention"].text()
    assert "step1.prices" not in PLANS["region"].text()
    assert "step1.input_relu=0\n" in PLANS["region"].text()
    assert "whole=0\n" in PLANS["attention"].text()
    assert "inner=" not in PLANS["dense"].text() and "inner=16\n" in PLANS["over ReLU"].text()
    assert "kernels=dense:k_1,row:k2\n" in PLANS["dense"].text()


OPERANDS = {
    "detect": ["live"],
    "detect a padding mask": ["live", "padding"],
    "dense": ["a", "b", "bias", "rows", "live"],
    "over ReLU": ["a", "b1", "b", "bias", "rows", "live"],
    "by a computed matrix": ["a", "b", "factor", "bias", "residual"],
    "by tiles of C": ["a", "b", "mask"],
    "attention": ["q", "k", "v", "q_offsets", "k_offsets", "bias", "q_coords", "k_coords"],
}


@pytest.mark.parametrize("name", OPERANDS)
def test_operands_follow_from_fields(name: str) -> None:
    assert list(PLANS[name].operands) == OPERANDS[name]


def test_operands_of_what_lies_whole() -> None:
    plan = PLANS["attention"]
    assert isinstance(plan, Attention)
    whole = replace(plan, bias=False, whole=True)
    assert list(whole.operands)[5:] == ["k_coords", "live"]


WRONG = {
    "another version": ("pitc-plan 9", "pitc-plan 5", "is no plan"),
    "no end": ("\nrank=2\n", "\nrank=2", "is no plan"),
    "another order": ("op=detect\nrank=2", "rank=2\nop=detect", "is no plan"),
    "a line without a value": ("rank=2", "rank", "without a value"),
    "a key twice": ("rank=2", "rank=2\nrank=2", "twice"),
    "no operation": ("op=detect\n", "", "operation '' is unknown"),
    "an unknown field": ("rank=2", "rank=2\nrows=1", r"has \['rows'\] too many"),
    "a field is missing": ("rank=2\n", "", r"lacks \['rank'\]"),
    "a number that is too large": ("rank=2", "rank=9", "in 1..8, got '9'"),
    "a number that is too small": ("rank=2", "rank=0", "in 1..8, got '0'"),
}


NEEDED = [
    *(("over zeros", key) for key in ("input_relu", "kernels", "library", "gather", "dtype")),
    ("by tiles of C", "tiles"),
    *(("attention", key) for key in ("q_head", "v_head", "scale")),
    *(("region", key) for key in ("gives", "library", "step0.kernels", "step1.input_relu")),
]


@pytest.mark.parametrize(("name", "key"), NEEDED)
def test_what_has_a_default_for_its_maker_still_stands_in_the_text(name: str, key: str) -> None:
    lines = PLANS[name].text().split("\n")
    left = [line for line in lines if not line.startswith(f"{key}=")]
    assert len(left) == len(lines) - 1
    with pytest.raises(WrongPlanError, match="lacks"):
        parse("\n".join(left))


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_plan(what: str) -> None:
    old, new, why = WRONG[what]
    text = PLANS["detect"].text()
    assert old in text
    with pytest.raises(WrongPlanError, match=why):
        parse(text.replace(old, new))


NONE = [
    *((Whole(1, 10), text) for text in ("", "01", "+1", "1 ", "0", "11", "-1", "1.0", "\u0663")),
    *((Flag(), text) for text in ("", "2", "true", "00")),
    *((Word(("a", "b")), text) for text in ("", "c", "a,b")),
    *((Words(("a", "b")), text) for text in ("", "c", "a,", "b,a", "a,a", "a,c")),
    *((FileName(), text) for text in ("", ".a", "a/b", "a b", "ü", 201 * "a")),
    *((Identity(), text) for text in ("", "1", "/x", "01/x", "1/x y", "x/1")),
    *((Symbols(), text) for text in ("", "a", "a:", ":b", "a:b,", "a:b,a:c", "a:b.c", "A:b")),
    *((Layout(), text) for text in ("", "r", "0,r", "c0,c0", "l,l", "c8", "c0,", "c0" + 12 * ",r")),
    *((Real(), text) for text in ("1.5", "0x1", "nan", "inf", "0x1.8", "0X1P+0")),
    *((Name(), text) for text in ("", "a b", "%2", "%61", "%20 ")),
    *((Place(4), text) for text in ("5", "none", "")),
    *((Listed(Whole(0, 3)), text) for text in ("", "1,", ",1", "1,4", "1;2")),
]


@pytest.mark.parametrize(("kind", "text"), NONE)
def test_what_is_no_value(kind: Whole, text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        kind.parse(text)


@pytest.mark.parametrize(
    "plan",
    [
        Detect(rank=0),
        Detect(rank=9),
        Pack(dims=("c8",), dtype="int32", **NAMED),
        Pack(dims=(), dtype="int32", **NAMED),
        Pack(dims=("l",), dtype="float32", **NAMED),
        Pack(dims=("r",), dtype="int32", **NAMED),
        replace(Contract(**ROWS), kernels=()),
        replace(Contract(**ROWS), kernels=(("dense", "a"), ("dense", "b"))),
        replace(Contract(**ROWS), library="a/b"),
        replace(Contract(**ROWS), activation="tanh"),
        replace(Attention(**HEADS, **FLAGS, **NAMED), scale=float("inf")),
    ],
    ids=repr,
)
def test_a_wrong_plan_has_no_text(plan: Plan) -> None:
    with pytest.raises(ValueError, match="expected"):
        plan.text()


def test_steps_of_a_region_are_numbered() -> None:
    text = PLANS["region"].text()
    for old, new in (("steps=2", "steps=3"), ("step1.", "step2.")):
        with pytest.raises(WrongPlanError, match="with fields of"):
            parse("\n".join(["pitc-plan 9", *sorted(text.replace(old, new).split("\n")[1:-1]), ""]))


@pytest.mark.parametrize("key", [*STEPS, "weight_step", "weight_above"])
def test_steps_of_attention_stand_together(key: str) -> None:
    lines = PLANS["attention in steps"].text().split("\n")
    left = [line for line in lines if not line.startswith(f"{key}=")]
    with pytest.raises(WrongPlanError, match=f"attention: .* without {key}"):
        parse("\n".join(left))


SEEDS = [*(ROOT / "runtime" / "tests").glob("*plans/*")]


def test_seeds_of_the_fuzzers_have_every_field() -> None:
    """They are plans here, too."""
    seen: dict[str, set[str]] = {op: set() for op in OPS}
    for seed in SEEDS:
        text = seed.read_text()
        plan = parse(text)
        assert parse(plan.text()) == plan
        seen[plan.op] |= plan.lines().keys()
        if isinstance(plan, Region):
            seen["contract"] |= {key for step in plan.steps for key in step.plan.lines()}
    for op, kind in OPS.items():
        fields = {name for name, of in kinds_of(kind).items() if not isinstance(of, Lines)}
        assert fields <= seen[op], f"{op}: {fields - seen[op]}"


def test_the_page_has_the_table() -> None:
    assert page() == PAGE.read_text("utf-8"), "run: python -m tools.plans"
    assert table().count("\n") == 1 + len(OPS)
    assert (
        "q_coords int32, if `bias` or `program`; k_coords int32, if `bias` or `whole` or" in table()
    )
    assert "`inner`?: 1..2^24" in table()
    limits = "no `group`, `pairs=0`, no `sinks`, `whole=0`, no `score_cap`"
    assert f"On a GPU: {limits}" in table()


def test_the_header_has_every_field_and_operand() -> None:
    text = header()
    for op, kind in OPS.items():
        if kind is Region:
            continue
        begin = text.index(f"struct {kind.__name__}Plan {{")
        struct = text[begin : text.index("\n};", begin)]
        for name, of in kinds_of(kind).items():
            if name not in BY_HAND and not isinstance(of, Lines):
                assert f'("{name}"' in struct, f"{op}: {name} is not read"
        for operand in kind.all_operands:
            assert f"in.{operand.name} = in.count++;" in struct
        assert f'{{"{op}", ' in text


@pytest.mark.parametrize(
    "program", ["0", "2", "3,1", "3,2,0", "3,4", ",".join("3" * 17 + "1" * 16)]
)
def test_programs_leave_one_truth_value(program: str) -> None:
    text = Pairs(rank=1, positions=2, tables=0, orders=0, keys=0, queries=0, pairs=0, program=(3,))
    assert parse(text.text().replace("program=3", "program=4,3,1,2"))
    with pytest.raises(WrongPlanError, match="that leave one truth value"):
        parse(text.text().replace("program=3", f"program={program}"))
