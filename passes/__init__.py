"""Passes: rule tables, fact engines, regions, lowering, and the pipeline that runs them."""
