"""Sums of what many siblings give, the same operations with different constants, become the
operations of all of them at once, where their products then run grouped.
"""

from pitc.passes.siblings.trial import join_siblings

__all__ = ["join_siblings"]
