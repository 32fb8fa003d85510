"""One record per operator: its rule, and beside it the few properties that do not follow from the
tensor expressions that the rule gives.

    OPERATORS["", "Add"]     rule: elementwise, function: np.add, weights (1,), finite: always, ...

The records are filled in where the rules stand. What a soundness argument rests on has the safe
side as its default: not finite, not clean, reads its operands, no sign, no law. An engine asks the
record of a node (`operator_of`), never its name.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import onnx_ir as ir

from pitc.ir.constant import Number
from pitc.ir.expr import TensorExpr
from pitc.ir.graph import NodeView
from pitc.passes.rules.affine import Affine, Order
from pitc.passes.rules.assumes import Assumes, implied_by
from pitc.passes.rules.laws import Law
from pitc.passes.rules.signs import Sign, Signs
from pitc.passes.rules.term import Derivative
from pitc.passes.rules.values import Value

Key = tuple[str, str]  # domain, operator type
Array = Any  # a numpy array or scalar of any type
Parameters = dict[str, Any]
Rule = Callable[[NodeView], Sequence[TensorExpr | None]]


class Operands(Protocol):
    """What may be asked about the operands of a node: is the node finite for them?"""

    @property
    def view(self) -> NodeView:
        """The node."""
        ...

    @property
    def changed(self) -> Collection[str]:
        """Names of operands that may hold other numbers."""
        ...

    def sign(self, i: int) -> Sign:
        """The sign of every element of input i."""
        ...

    def is_not_positive(self, i: int) -> bool:
        """True where no element of input i is."""
        ...

    def number(self, i: int) -> Number | None:
        """The one number that input i is, as a constant."""
        ...

    def has_no_zero(self, i: int) -> bool:
        """True for a constant without zeros."""
        ...


Condition = Callable[[Operands], bool]


def always(_: Operands) -> bool:
    """For all operands; of `finite`: all finite ones, overflow aside."""
    return True


def never(_: Operands) -> bool:
    """Not known for any operands."""
    return False


def trust_all(*_: float) -> bool:
    """Trust the arithmetic for every operand."""
    return True


def trust_none(*_: float) -> bool:
    """Trust no value: only the operator's reads are described."""
    return False


@dataclass(frozen=True, slots=True)
class Elementwise:
    """What one elementwise operator computes.

    Args:
        evaluate: Its function on numpy arrays of the operands' types, with `parameters` as
            keywords; None when unknown.
        operands: How many leading inputs are data; None for all.
        trusted: Where `evaluate` is known to give the exact result, by the operands' values.
        parameters: Keyword arguments of `evaluate` from a node's attributes; None when they are not
            known.
        monotone: In each operand, for any numbers as the others: over a box of operands the results
            lie between those at its corners.
        image: Ends between which results lie for all finite operands, rounding included.
        boolean: Results are bools.
        typed: Integers are computed in a way of their own, so without types nothing is said.
    """

    evaluate: Callable[..., Array] | None
    operands: int | None = None
    trusted: Callable[..., bool] = trust_none
    parameters: Callable[[NodeView], Parameters | None] | None = None
    monotone: bool = False
    image: tuple[float, float] | None = None
    boolean: bool = False
    typed: bool = False


class PackRule(Enum):
    """How a node runs on the gathered rows of its operands, where its expression does not tell.

    An elementwise operator packs because it is one; the others by how their attributes say what
    they do.
    """

    PER_TENSOR = "elementwise, while the further operands are one number each"
    PER_CHANNEL = "elementwise, with numbers per channel"
    CHOICE = "one of two whole values"
    CONTRACTION = "rows times a matrix"
    NORMALISER = "rows, along an axis"
    REDUCTION = "rows, over axes"
    RESHAPED = "the same elements in row-major order"
    REPEATED = "elements repeated"
    TRANSPOSED = "axes in another order"
    ALONG_AXIS = "pieces along one axis"
    LOOK_UP = "rows of a table"
    LOOK_UP_VECTORS = "rows of a table by index vectors"
    BEST_PLACES = "the largest ones along an axis"
    BY_EXTREMES = "elementwise, by extremes of a whole operand"
    ROWS = "the node itself, whose rows may lie in any number of dimensions"


LOOK_UPS = (PackRule.LOOK_UP, PackRule.LOOK_UP_VECTORS)  # slices of a table


class Items(Enum):
    """Whether a node can run on some of its items: the images that dimension 0 counts."""

    ALL = "not known to run on fewer, or on none"
    ANY = "on any number of them"
    NAMED = "on any number, its axis named from the front"  # of none, kernels keep a negative one


class Adjoint(Enum):
    """How the gradients of a node's operands follow, where its expression does not tell."""

    PRODUCT = "the labels of the result exchanged for those of a factor"
    SOFTMAX = "of softmax"
    MOVED = "by the places of the elements of operand 0, which the node moves itself"
    ELEMENTS = "back to the places that an index names, one for each element"
    CUMULATED = "cumulated the other way"
    SCATTERED_ELEMENTS = "to what each element is: the operand's, or an update"
    SCATTERED_SLICES = "the same of slices"
    REDUCED = "spread over what was reduced"
    LOG_SOFTMAX = "of log-softmax"
    ROW_NORM = "of a norm of all dimensions from an axis on"
    INSTANCE_NORM = "of a norm of each channel of an image"
    CHANNEL_NORM = "of a norm of each channel of all images"
    LP_NORM = "of a division by a length"
    DROPPED = "as the mask keeps elements"
    CONVOLVED = "a window that slides the other way, or over the other operand"
    CONVOLVED_BACK = "the same of a transposed convolution"
    COLUMNS = "blocks of the image"
    POOLED = "spread over the window that was pooled"
    POOLED_WHOLE = "the same of whole images"
    LOCAL_NORM = "of a norm of the channels around"
    RESAMPLED = "by the matrix of each dimension"


@dataclass(frozen=True, slots=True)
class Zeros:
    """Where an operator that is no function of one element has zeros worth a test.

    Args:
        expected: True for a node whose result is expected to hold some.
        scattered: They are single elements: of whole lines nothing is to be said.
        mostly: It holds little else, so that they matter wherever they arrive.
    """

    expected: Callable[[NodeView], bool]
    scattered: bool = False
    mostly: bool = False


@dataclass(frozen=True, slots=True)
class Operator:
    """What is known of one operator.

    Args:
        rule: Gives the tensor expressions of a node; None where there is none.
        assumes: What the rule takes for granted; None where nobody has decided that.
        function: What it computes element by element; None where it is not elementwise.
        finite: Where it gives finite results for finite operands, when its expression does not tell
            (a movement, a sum and a largest one do) or there is none.
        keeps_clean: Operands without NaN and +inf give results without them, -inf allowed.
        selects: The value of an operand that is not chosen does not matter, NaN or not.
        finds_nan: It tells which elements are NaN.
        chooses: Operand 0 tells whether the result is operand 1 or 2.
        converts: The result is operand 0 in another type.
        caps: It is the hyperbolic tangent.
        quantises: It is operand 0 in steps of operand 1, counted from operand 2.
        dequantises: It is what such steps stand for.
        reads_no_element: Only the operands' sizes are looked at.
        weights: Of its operands in a sum, the last one for all further operands; empty: no sum.
        powers: The same of its operands in a product.
        law: What constants of the operands say of the result without arithmetic.
        sign: The sign of the result, from those of the operands.
        not_positive: Where no result is above 0.
        least: A number that no result is below, in the result's type.
        square: Where the result is a square.
        exponent: Of operand 0, of which it is a power; None where a node does not say.
        magnitude: The largest one of a node's results, by its types and constants; or more.
        affine: The result of operands that are affine functions of positions.
        order: The comparison that it is.
        value: The result of small integer operands in symbols.
        fill: The number that it gives everywhere; None where a node does not say.
        diagonal: It is 1 on a diagonal of a matrix, this many places above the main one, and 0
            elsewhere.
        elsewhere: It is operand 0 where that is read, and this number elsewhere; None where a node
            does not say.
        positions: It counts: the operands that it starts from and steps by.
        few: Along which dimension of its result few elements are not 0, in every run, and how many
            at most in a line; None where a node does not say.
        live_places: It gives the places of nonzero elements, in order.
        zeros: Zeros of its own.
        extremes_of: The operand of which it looks at the least and the largest element beside 0, so
            that a 0 more or less changes neither; None where it does not.
        centres: Of a norm of lines, whether it subtracts their means; None where it is none.
        packs: How it runs on gathered rows.
        items: Whether it runs on some of its items.
        kernels: Kernels of pitc's own that compute it.
        derivative: Of the result, with respect to each operand, as terms.
        adjoint: How the gradients of its operands follow, where neither its expression nor
            derivatives tell.
    """

    rule: Rule | None = None
    assumes: tuple[Assumes, ...] | None = None
    function: Elementwise | None = None
    finite: Condition = never
    keeps_clean: bool = False
    selects: bool = False
    finds_nan: bool = False
    chooses: bool = False
    converts: bool = False
    caps: bool = False
    quantises: bool = False
    dequantises: bool = False
    reads_no_element: bool = False
    weights: tuple[int, ...] = ()
    powers: tuple[int, ...] = ()
    law: Law | None = None
    sign: Callable[[Signs], Sign] | None = None
    not_positive: Condition = never
    least: Callable[[NodeView], Array | None] | None = None
    square: Condition = never
    exponent: Callable[[Operands], Number | None] | None = None
    magnitude: Callable[[NodeView], float | None] | None = None
    affine: Affine | None = None
    order: Order | None = None
    value: Value | None = None
    fill: Callable[[NodeView], Any] | None = None
    diagonal: Callable[[NodeView], int] | None = None
    elsewhere: Callable[[NodeView], Number | None] | None = None
    positions: tuple[int, int] | None = None
    few: Callable[[NodeView], tuple[int, int] | None] | None = None
    live_places: bool = False
    zeros: Zeros | None = None
    extremes_of: int | None = None
    centres: bool | None = None
    packs: PackRule | None = None
    items: Items = Items.ALL
    kernels: tuple[str, ...] = ()
    derivative: Derivative | None = None
    adjoint: Adjoint | None = None

    @property
    def multiplies(self) -> bool:
        """It is a product of its operands."""
        return bool(self.powers) and min(self.powers) > 0

    def rests_on(self, expr: TensorExpr) -> list[Assumes]:
        """Everything that the rule, and facts by the columns and by an expression, assume."""
        found = [*(self.assumes or ()), *implied_by(expr)]
        function = self.function
        if function is not None and (self.law or function.monotone) and not self.selects:
            found += [Assumes.FINITE_OPERANDS]
        if self.multiplies:
            found += [Assumes.SIGN_UNSEEN]
        if self.finite is not never and not (function is not None and function.boolean):
            found += [Assumes.NO_OVERFLOW]
        if self.affine is not None or self.value is not None or self.order is not None:
            found += [Assumes.NO_WRAP]
        return list(dict.fromkeys(found))

    def weight(self, k: int) -> int:
        """Of operand k in the sum that the operator is; 0 where it is none."""
        return _at(self.weights, k)

    def power(self, k: int) -> int:
        """Of operand k in the product that the operator is; 0 where it is none."""
        return _at(self.powers, k)


def _at(numbers: tuple[int, ...], k: int) -> int:
    return numbers[min(k, len(numbers) - 1)] if numbers else 0


OPERATORS: dict[Key, Operator] = {}
UNKNOWN = Operator()


def key_of(node: ir.Node) -> Key:
    """Domain and operator type of a node."""
    return node.domain, node.op_type


def operator_of(node: ir.Node | NodeView) -> Operator:
    """The record of a node's operator; the safe side of everything where there is none."""
    key = (node.domain, node.op) if isinstance(node, NodeView) else key_of(node)
    return OPERATORS.get(key, UNKNOWN)
