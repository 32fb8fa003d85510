"""Engines: how one kind of machine computes a dense tile. Kernel families say the addresses."""
