"""Gradients: reverse mode over an ONNX graph, by the tensor expressions of its nodes."""
