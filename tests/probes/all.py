"""All probes by name."""

from tests.probes import orders, readers, typed
from tests.probes.build import Maker
from tests.probes.deadness import DEADNESS
from tests.probes.integers import INTEGERS
from tests.probes.masks import MASKS
from tests.probes.padding import PADDING
from tests.probes.scopes import SCOPES
from tests.probes.sizes import SIZES
from tests.probes.softmax import SOFTMAX
from tests.probes.sparse import SPARSE
from tests.probes.zeros import ZEROS

MORE = (orders, readers, typed)  # they add to tables of others
TABLES = (MASKS, SOFTMAX, SIZES, INTEGERS, ZEROS, PADDING, SCOPES, DEADNESS, SPARSE)
MAKERS: dict[str, Maker] = {name: make for table in TABLES for name, make in table.makers.items()}

# the longest prefix of a probe's name says what is suspected first when it fails
SUSPECTS: dict[str, str] = {
    "masks": "facts/softmax.py:spared_rows, facts/fill.py:_note_losses",
    "softmax": "facts/softmax.py:spared_rows, facts/fill.py:_note_losses",
    "softmax.mask_values": "facts/softmax.py:spared_rows (not 0 is taken for kept)",
    "softmax.direct": "facts/softmax.py:spared_rows (above -1e4 is taken for kept)",
    "sizes": "ir/index.py:nonneg (symbols >= 1), normalise.py:fold_known_if",
    "sizes.if.range": "rules/sources.py:_count",
    "sizes.if.wrapped": "facts/values.py:_fits (symbols times numbers wrap)",
    "sizes.where": "ir/index.py:nonneg, facts/values.py, rules/control.py:known_condition",
    "sizes.tokens": "regions/layout.py (extent 1 is 0 when a slice clamps)",
    "integers": "rules/affine.py; facts/affine.py:learn",
    "zeros.law": "rules/elementwise.py:Reciprocal, Div; rules/laws.py",
    "zeros.half": "rules/elementwise.py:Reciprocal, Div; rules/laws.py",
    "zeros.tiny": "rules/elementwise.py:Reciprocal, Div; rules/laws.py",
    "zeros.law.reciprocal_of_product": "regions/choose.py:_not_total (SWrite gives +0)",
    "zeros.law.sign_of_product": "regions/choose.py:_not_total (SWrite gives +0)",
    "zeros.law.minus_zero_sum": "regions/choose.py:_not_total (SWrite gives +0)",
    "zeros.function": "lower/activation.py:_known, SAMPLES; lower/contract.py",
    "zeros.masked_function": "lower/activation.py:_evaluate, _known",
    "zeros.clip10": "lower/activation.py:_evaluate, _known",
    "padding": "pipeline.py:_given_up",
    "padding.plain": "lower/activation.py:_evaluate; lower/rewrite.py:_kept_where",
    "padding.batch1": "lower/rewrite.py:_zero_given_up, _spread",
    "padding.mask_type_batch1": "lower/rewrite.py:_zero_given_up, _spread",
    "padding.plain.strings": "regions/choose.py:_movable (itemsize of strings)",
    "padding.fixed.strings": "regions/choose.py:_movable (itemsize of strings)",
    "padding.batch1.strings": "lower/rewrite.py:_kept_where",
    "padding.plain.sizes": "lower/rows.py:replace_sizes (an output without a type)",
    "scopes": "lower/rows.py:only_reader, lower/gemm.py",
    "scopes.branch_masks": "rules/control.py:choose, facts/fill.py:_note_losses",
    "deadness": "rules/laws.py:total, odd, unequal, truth_of",
    "deadness.masked.sqrt": "rules/laws.py:product (0 times NaN made by the graph)",
    "deadness.masked.exp_over": "rules/laws.py:product (0 times an overflow)",
    "deadness.readers": "regions/legal.py:_not_total; facts/total.py:may_fail",
    "sparse": "facts/finite.py (inputs count as finite)",
}


def suspect_of(name: str) -> str:
    """Where the fault of a failing probe is looked for first."""
    found = [prefix for prefix in SUSPECTS if name.startswith(prefix)]
    return SUSPECTS[max(found, key=len)] if found else ""
