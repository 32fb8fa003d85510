"""Fused operators, taken apart for the analysis and put together again where nothing of them was
lowered.

`expansion.py` is the engine; the other files say what each operator consists of.
"""

from pitc.passes.expand.expansion import expand_experts, expand_fused, restore_fused

__all__ = ["expand_experts", "expand_fused", "restore_fused"]
