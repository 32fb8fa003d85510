"""Passes: rule tables, fact engines, regions, lowering, and the pipeline that runs them."""

#: Every stage of the pipeline, in order.
STAGES = ("normalise", "facts", "regions", "lower")
