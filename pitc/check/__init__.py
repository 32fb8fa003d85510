"""Checking: inputs, answers beside ONNX Runtime, the smallest part that fails."""
