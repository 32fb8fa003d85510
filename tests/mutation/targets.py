"""What is mutated, what is left out, and which tests judge."""

MODULES = {  # the most important first; with what no answer rests on
    "pitc.passes.facts.softmax": {"MAX_GUARDS"},
    "pitc.passes.facts.terms": set(),
    "pitc.passes.facts.fill": {"MAX_COMBINATIONS"},
    "pitc.passes.facts.dead": set(),
    "pitc.passes.facts.finite": set(),
    "pitc.passes.facts.total": set(),
    "pitc.passes.facts.zero_signs": set(),
    "pitc.passes.rules.constants": set(),
    "pitc.passes.rules.conditions": set(),
    "pitc.ir.constant": set(),
    "pitc.passes.rules.laws": set(),
    "pitc.passes.rules.signs": set(),
    "pitc.passes.rules.affine": set(),
    "pitc.passes.rules.values": set(),
    "pitc.passes.facts.affine": {"MAX_AFFINE_RANK"},
    "pitc.ir.poly": set(),
    "pitc.ir.region": {"MAX_TESTS", "MAX_FACTS", "RESOLVE_ROUNDS", "CACHED", "cost", "describe"},
    "pitc.ir.predicate": set(),
    "pitc.ir.index": set(),
    "pitc.ir.expr": set(),
    "pitc.passes.facts.signs": {"MAX_STEPS"},
    "pitc.passes.facts.values": {"SMALL_VALUE"},
    "pitc.passes.facts.derive": set(),
    "pitc.passes.facts.seeds": {"MOSTLY", "SAMPLE", "MASK_SIZE"},
    "pitc.passes.regions.scores": set(),
    "pitc.passes.regions.domain": {"MAX_RANK"},
    "pitc.passes.regions.layout": set(),
    "pitc.passes.regions.choose": {"MAX_DOMAINS"},
    "pitc.passes.regions.legal": set(),
    "pitc.passes.regions.live_tests": set(),
    "pitc.passes.control.branches": set(),
    "pitc.passes.normalise": {"MAX_ROUNDS"},
}

TESTS = (
    *("test_region", "test_index", "test_predicate", "test_domain", "test_symbol_values"),
    *("test_facts_forward", "test_facts_backward", "test_facts_terms", "test_facts_windows"),
    *("test_signs", "test_rules_constants", "test_rules_shapes", "test_axes", "test_normalise"),
    *("test_exhaustive_laws", "test_exhaustive_columns", "test_exhaustive_integers"),
    *("test_exhaustive_sizes", "test_rules", "test_attention_scores", "test_exit_checks"),
    *(
        "test_mutation_twins",
        "test_softmax_guards",
        "test_records",
        "test_record_claims",
        "test_operators_page",
    ),
    *("test_exact_regions", "test_exact_predicates", "test_exact_index", "test_exact_poly"),
    "test_exact_exprs",
)
SEEDS = range(150)  # random graphs that judge
LONGEST = 2.5  # seconds: slower tests do not judge

# checks that are about a module, by a part of their names: they look first
_MASKS = ("test_facts_terms", "probe:softmax", "probe:masks")
_FACTS = ("test_facts_forward", "test_facts_backward", "test_facts_windows", "probe:deadness")
_SIZES = ("test_exhaustive_integers", "test_symbol_values", "probe:integers", "probe:sizes")
RELATED = {
    "facts.softmax": (*_MASKS, "test_mutation_twins"),
    "facts.terms": (*_MASKS, "test_mutation_twins"),
    "facts.fill": (*_FACTS, "test_mutation_twins"),
    "facts.dead": (*_FACTS, "probe:scopes"),
    "facts.finite": (*_FACTS, "test_mutation_twins"),
    "facts.total": ("test_exhaustive_columns", *_FACTS),
    "facts.zero_signs": ("probe:zeros",),
    "rules.constants": ("test_rules_constants", "test_exhaustive_laws"),
    "ir.constant": (*_MASKS, "test_exhaustive_laws"),
    "facts.affine": _SIZES,
    "facts.values": _SIZES,
    "ir.poly": ("test_exact_poly", "test_index", "test_exhaustive_integers"),
    "ir.index": ("test_exact_index", "test_index", "test_exhaustive_integers"),
    "ir.region": ("test_exact_regions", "test_region", "test_predicate"),
    "ir.predicate": ("test_exact_predicates", "test_predicate", "test_region"),
    "ir.expr": ("test_exact_exprs", "test_rules", "test_axes"),
    "facts.signs": ("test_signs", "test_exhaustive_columns"),
    "regions.scores": ("test_attention_scores", "probe:softmax", "probe:masks"),
    "regions.domain": ("test_domain", "probe:masks"),
    "control.branches": ("probe:scopes", "probe:sizes.if"),
}
