"""Rewrites that ONNX Runtime's own ways ask for; all of these are listed in `pitc/ir/quirks.py`."""
