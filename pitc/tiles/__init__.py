"""Tile tables: what the variants of a contraction cost on a machine.

file.py      the file format
find.py      which table is in force: the shipped one, the user's own, or a file that is named
patterns.py  operands with live micro-tiles of a shape and density
measure.py   contractions of one size, each variant timed by force
fit.py       prices from measured points
factors.py   factors by the shape of what lives, from what prices leave
tune.py      `pitc tune`: what is measured, in which order, and how it goes on after a stop
"""
