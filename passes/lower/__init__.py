"""Lowering: packed forms of nodes, attention over live keys, and the rewrite that puts SRead and
SWrite around them.
"""
