"""Elementwise operators that are timed: one kernel for all of a formula, against one for each step.

The formulas are those of training: the gradients of GELU and of a norm over packed rows, and Adam.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import pitc.passes.rules  # noqa: F401  (fills the records)
from benchmarks.gpu.answers import expect
from benchmarks.gpu.arrays import download, empty, part, upload
from benchmarks.gpu.driver import Array
from benchmarks.gpu.journal import Case, Result, Telling
from benchmarks.gpu.peers import Torch
from benchmarks.gpu.products import Machine, Work
from benchmarks.gpu.run import OURS, Run
from benchmarks.gpu.timing import Contender, Make, operand_sets
from pitc.codegen.call import DeviceTensor
from pitc.ir.formula import COLUMN, NUMBER, REDUCTIONS, ROW, WHOLE, Formula, Step
from pitc.ir.kernel import KernelRequest
from pitc.passes.rules.record import OPERATORS

TOLERANCE = 1e-4
"""Norm of the difference over norm, float32 against float64."""
CHECKED_ROWS = 16
OF_A_BLOCK, BLOCKS = 1024, 8
"""Elements that a block takes at once, and blocks of a multiprocessor, as the runtime has them."""
_TORCH = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Sqrt": "sqrt", "Exp": "exp"}
_TORCH |= {"Erf": "erf"}


@dataclass(frozen=True, slots=True)
class Chain:
    """Nodes that lead to one value.

    Args:
        name: Of the case.
        rows: How many.
        n: Elements of each.
        formula: What is computed.
    """

    name: str
    rows: int
    n: int
    formula: Formula


GELU = Formula.of(
    (WHOLE, WHOLE),
    "Mul:x0:0x1.6a09e6p-1,Erf:s0,Add:s1:0x1.0p+0,Mul:s2:0x1.0p-1,Mul:x0:x0,Mul:s4:-0x1.0p-1,"
    "Exp:s5,Mul:s6:0x1.988454p-2,Mul:x0:s7,Add:s3:s8,Mul:x1:s9;s10",
)
NORM = Formula.of(
    (WHOLE, WHOLE, ROW, COLUMN),
    "Mul:x0:x2,ReduceMean:s0,Mul:s0:x1,ReduceMean:s2,Sub:s0:s1,Mul:x1:s3,Sub:s4:s5,Mul:s6:x3;s7",
)
ADAM = Formula.of(
    (WHOLE, WHOLE, WHOLE, WHOLE, NUMBER),
    "Mul:x1:0x1.ccccccp-1,Mul:x0:0x1.99999ap-4,Add:s0:s1,Mul:x0:x0,Mul:x2:0x1.ff7ceep-1,"
    "Mul:s3:0x1.0624dep-10,Add:s4:s5,Sqrt:s6,Add:s7:0x1.5798eep-27,Div:s2:s8,Mul:s9:x4,"
    "Sub:x3:s10;s11;s2;s6",
)
CHAINS = (
    Chain("gelu-grad", 1280, 3072, GELU),
    Chain("norm-grad", 1280, 768, NORM),
    Chain("norm-grad", 16384, 768, NORM),
    Chain("adam", 3072, 768, ADAM),
)
SMALL = (Chain("gelu-grad", 6, 96, GELU), Chain("norm-grad", 5, 66, NORM))
"""For an emulated device."""


def alone(formula: Formula, k: int) -> tuple[Formula, list[str]]:
    """One step as a formula, and what its operands are called in the whole one.

    Numbers of rows are many elements to a step that computes nothing else.
    """
    step = formula.steps[k]
    names = [x for x in dict.fromkeys(step.operands) if x[0] in "xs"]
    kinds = list[str]()
    for name in names:
        place = int(name[1:])
        of_step = COLUMN if name[0] == "s" and formula.columns[place] else WHOLE
        kinds.append(formula.kinds[place] if name[0] == "x" else of_step)
    if formula.columns[k] and step.op not in REDUCTIONS:
        kinds = [WHOLE if kind == COLUMN else kind for kind in kinds]
    renamed = tuple(f"x{names.index(x)}" if x in names else x for x in step.operands)
    return Formula(tuple(kinds), (Step(step.op, renamed),), (0,)), names


def elementwise_requests() -> list[KernelRequest]:
    """Kernels of all formulas, and of their steps."""
    found = list[Formula]()
    for chain in (*CHAINS, *SMALL):
        found.append(chain.formula)
        found += [alone(chain.formula, k)[0] for k in range(len(chain.formula.steps))]
    return list(
        dict.fromkeys(
            KernelRequest.of(
                "elementwise", "float32", "cuda", kinds=",".join(f.kinds), formula=f.text
            )
            for f in found
        )
    )


def elementwise_cases(run: Run) -> Iterator[Case]:
    """Each formula, whose operands come from memory."""
    for chain in SMALL if run.small else CHAINS:
        facts = {"dtype": "float32", "rows": chain.rows, "columns": chain.n}
        facts |= {"steps": len(chain.formula.steps)}
        name = f"elementwise-{chain.name}-{chain.rows}x{chain.n}"
        yield Case(name, facts, partial(_timed, run, chain))


def _timed(run: Run, chain: Chain, telling: Telling) -> Result:
    given = _drawn(chain)
    columns = chain.formula.column_results
    results = sum(chain.rows * (1 if column else chain.n) for column in columns)
    set_bytes = sum(x.nbytes for x in given) + 4 * results
    sets = operand_sets(run.device, set_bytes)

    def ours(make: Callable[[Run, Chain, list[DeviceTensor]], _Made]) -> Contender:
        made = [make(run, chain, [upload(run.device, x) for x in given]) for _ in range(sets)]
        for work, _ in made:
            work()
        errors = [_error(run, chain, given, results) for _, results in made]
        return run.own([work for work, _ in made], error=max(errors))

    makers: dict[str, Make] = {OURS: partial(ours, _whole), "step-by-step": partial(ours, _steps)}
    makers |= run.peers(lambda torch: {"torch": partial(_of_torch, torch, chain, given, sets)})
    result = run.timed(telling, makers, set_bytes, sets)
    for row in result["contenders"]:
        if row["name"] == OURS and row["us"]:
            result["gbytes_per_s"] = set_bytes / row["us"] / 1e3
    return result


_Made = tuple[Work, list[DeviceTensor]]


def _drawn(chain: Chain) -> list[Array]:
    rng = np.random.default_rng(chain.rows)
    shapes = {ROW: (chain.n,), COLUMN: (chain.rows,), NUMBER: (1,)}
    found = [
        rng.standard_normal(shapes.get(kind, (chain.rows, chain.n)), np.float32)
        for kind in chain.formula.kinds
    ]
    if chain.formula is ADAM:
        found[2] = np.abs(found[2])  # a mean of squares
    return found


def _results(run: Run, chain: Chain, columns: Sequence[bool]) -> list[DeviceTensor]:
    shapes = [(chain.rows,) if column else (chain.rows, chain.n) for column in columns]
    return [empty(run.device, shape, np.float32) for shape in shapes]


def _whole(run: Run, chain: Chain, given: list[DeviceTensor]) -> _Made:
    results = _results(run, chain, chain.formula.column_results)
    sizes = chain.rows, chain.n
    return launched(run.machine, chain.formula, (given, results), sizes), results


def _steps(run: Run, chain: Chain, given: list[DeviceTensor]) -> _Made:
    """A kernel for each step; what each gives goes through memory."""
    formula = chain.formula
    known = {f"x{i}": x for i, x in enumerate(given)}
    made = _results(run, chain, formula.columns)
    works = list[Work]()
    for k, step in enumerate(formula.steps):
        one, names = alone(formula, k)
        of_rows = formula.columns[k] and step.op not in REDUCTIONS
        sizes = chain.rows, 1 if of_rows else chain.n
        known[f"s{k}"] = made[k]
        works.append(launched(run.machine, one, ([known[x] for x in names], [made[k]]), sizes))

    def work() -> None:
        for one in works:
            one()

    return work, [made[k] for k in formula.results]


def launched(
    machine: Machine,
    formula: Formula,
    tensors: tuple[Sequence[DeviceTensor], Sequence[DeviceTensor]],
    sizes: tuple[int, int],
) -> Work:
    """A launch as the runtime does it.

    Args:
        machine: Has the kernel.
        formula: What is computed.
        tensors: Operands and results.
        sizes: Rows, and elements of each.
    """
    rows, n = sizes if formula.by_rows else (1, sizes[0] * sizes[1])
    shapes = {ROW: (n,), COLUMN: (rows,), NUMBER: (1,)}
    given = [
        part(x, *shapes.get(kind, (rows, n)))
        for x, kind in zip(tensors[0], formula.kinds, strict=True)
    ]
    results = [
        part(y, *((rows,) if column else (rows, n)))
        for y, column in zip(tensors[1], formula.column_results, strict=True)
    ]
    wanted = rows if formula.by_rows else -(-n // OF_A_BLOCK)
    blocks = max(1, min(wanted, BLOCKS * machine.multiprocessors))
    return machine.library.bound(f"{formula.symbol}_cuda", *given, *results, blocks)


def _error(
    run: Run, chain: Chain, given: Sequence[Array], results: Sequence[DeviceTensor]
) -> float:
    """The largest error of a result, in some rows.

    Raises:
        AssertionError: One is wrong.
    """
    some = np.random.default_rng(5).permutation(chain.rows)[:CHECKED_ROWS]
    cut = [
        (x[some] if kind in (WHOLE, COLUMN) else x).astype(np.float64)
        for x, kind in zip(given, chain.formula.kinds, strict=True)
    ]
    cut = [x[:, None] if k == COLUMN else x for x, k in zip(cut, chain.formula.kinds, strict=True)]
    worst = 0.0
    for y, want in zip(results, _computed(chain.formula, cut, _of_record), strict=True):
        got = download(run.device, y)[some].astype(np.float64)
        error = float(np.linalg.norm(got - want.reshape(got.shape)) / np.linalg.norm(want))
        expect("elementwise", error, TOLERANCE)
        worst = max(worst, error)
    return worst


def _computed(formula: Formula, given: Sequence[Any], apply: Callable[..., Any]) -> list[Any]:
    """The results, step by step."""
    known = {f"x{i}": x for i, x in enumerate(given)}
    for k, step in enumerate(formula.steps):
        parts = [known[x] if x in known else float.fromhex(x) for x in step.operands]
        known[f"s{k}"] = apply(step.op, *parts)
    return [known[f"s{k}"] for k in formula.results]


def _of_record(op: str, *parts: Any) -> Any:
    if op in REDUCTIONS:
        return (np.mean if op == "ReduceMean" else np.sum)(parts[0], axis=-1, keepdims=True)
    function = OPERATORS["", op].function
    assert function is not None and function.evaluate is not None
    return function.evaluate(*parts)


def _of_torch(torch: Torch, chain: Chain, given: Sequence[Array], sets: int) -> Contender:
    """PyTorch's operators, one by one."""
    t = torch.torch

    def apply(op: str, *parts: Any) -> Any:
        if op in REDUCTIONS:
            return (t.mean if op == "ReduceMean" else t.sum)(parts[0], -1, keepdim=True)
        return getattr(t, _TORCH[op])(*parts)

    def one() -> Callable[[], Any]:
        kinds = chain.formula.kinds
        put = [
            torch.put(x[:, None] if k == COLUMN else x) for x, k in zip(given, kinds, strict=True)
        ]
        return partial(_computed, chain.formula, put, apply)

    return torch.contender(*(one() for _ in range(sets)))
