"""One run on a machine with an NVIDIA GPU: kernel tests, sessions, a sanitizer, times and peers.

Such a machine may have no compiler, no package registry and little time, so all that it needs is
made before, in a folder that travels (`pack.py`).
"""
