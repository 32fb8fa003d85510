"""Kernel families: one TIR template per file, specialised by static parameters and a CPU target."""
