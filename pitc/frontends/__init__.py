"""Models as other libraries keep them: exported to ONNX by their own exporter, then compiled."""
