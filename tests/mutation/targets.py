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
    # regions, indexes, rules
    *("test_region", "test_index", "test_predicate", "test_domain", "test_symbol_values"),
    *("test_exact_regions", "test_exact_predicates", "test_exact_index", "test_exact_poly"),
    *("test_exact_exprs", "test_ir_constant", "test_axes", "test_rules", "test_rules_shapes"),
    *("test_rules_constants", "test_rules_constants_ranges", "test_rules_constants_numbers"),
    *("test_rules_laws", "test_rules_values", "test_rules_affine", "test_rules_signs"),
    *("test_rules_conditions", "test_records", "test_record_claims", "test_record_values"),
    "test_operators_page",
    *("test_exhaustive_laws", "test_exhaustive_columns", "test_exhaustive_integers"),
    "test_exhaustive_sizes",
    # facts
    *("test_facts_forward", "test_facts_backward", "test_facts_terms", "test_facts_windows"),
    *("test_facts_scores", "test_facts_tables", "test_softmax_guards", "test_mutation_twins"),
    *("test_finite_guards", "test_zero_signs", "test_total_nodes", "test_affine_places"),
    *("test_affine_constants", "test_value_tables", "test_derived_shapes", "test_sign_steps"),
    *("test_fill_bodies", "test_fill_steps", "test_fill_reads", "test_signs"),
    *("test_dead_regions", "test_dead_slack", "test_fact_seeds"),
    # the way to regions
    *("test_exact_domains", "test_exact_layouts", "test_exact_legal", "test_exact_choice"),
    *("test_exact_scores", "test_exact_scores_parts", "test_exact_live_tests"),
    *("test_attention_scores", "test_exit_checks", "test_normalise"),
    *("test_control_flow", "test_control_loops", "test_branch_moves", "test_branch_places"),
    *("test_normalise_rewrites", "test_normalise_functions", "test_hostile_models"),
)
SEEDS = range(150)  # random graphs that judge
LONGEST = 2.5  # seconds: slower tests do not judge

# checks that are about a module, by a part of their names: they look first
_MASKS = ("test_facts_terms", "test_facts_scores", "test_softmax_guards")
_MASKED = (*_MASKS, "probe:softmax", "probe:masks")
_FACTS = ("test_facts_tables", "test_facts_forward", "test_facts_backward", "test_facts_windows")
_SIZES = ("test_exhaustive_integers", "test_symbol_values", "probe:integers", "probe:sizes")
RELATED = {
    "facts.softmax": (*_MASKED, "test_mutation_twins"),
    "facts.terms": (*_MASKED, "test_mutation_twins"),
    "facts.fill": ("test_fill_", *_FACTS, "test_control_loops", "test_mutation_twins"),
    "facts.dead": ("test_dead_", *_FACTS, "probe:deadness", "probe:scopes"),
    "facts.finite": ("test_finite_guards", *_FACTS, "test_mutation_twins"),
    "facts.total": ("test_total_nodes", "test_exhaustive_columns", *_FACTS),
    "facts.zero_signs": ("test_zero_signs", "probe:zeros"),
    "facts.affine": ("test_affine", *_SIZES),
    "facts.values": ("test_value_tables", *_SIZES),
    "facts.derive": ("test_derived_shapes",),
    "facts.signs": ("test_sign", "test_exhaustive_columns"),
    "facts.seeds": ("test_fact_seeds",),
    "normalise": ("test_normalise",),
    "rules.constants": ("test_rules_constants", "test_exhaustive_laws"),
    "rules.laws": ("test_rules_laws", "test_exhaustive_laws"),
    "rules.values": ("test_rules_values", "test_symbol_values"),
    "rules.affine": ("test_rules_affine",),
    "rules.signs": ("test_rules_signs", "test_exhaustive_columns"),
    "rules.conditions": ("test_rules_conditions", "test_exhaustive_columns"),
    "ir.constant": ("test_ir_constant", *_MASKS, "test_exhaustive_laws"),
    "ir.poly": ("test_exact_poly", "test_index", "test_exhaustive_integers"),
    "ir.index": ("test_exact_index", "test_index", "test_exhaustive_integers"),
    "ir.region": ("test_exact_regions", "test_region", "test_predicate"),
    "ir.predicate": ("test_exact_predicates", "test_predicate", "test_region"),
    "ir.expr": ("test_exact_exprs", "test_rules", "test_axes"),
    "regions.scores": ("test_exact_scores", "test_attention_scores", "probe:softmax"),
    "regions.domain": ("test_exact_domains", "test_domain", "probe:masks"),
    "regions.layout": ("test_exact_layouts", "test_domain"),
    "regions.live_tests": ("test_exact_live_tests",),
    "regions.legal": ("test_exact_legal", "test_exit_checks"),
    "regions.choose": ("test_exact_choice",),
    "control.branches": ("test_branch_", "probe:scopes", "probe:sizes.if"),
}
