"""Benchmarks of compiled models against what a user would run: `python -m benchmarks --help`."""
