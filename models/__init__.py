"""The zoo: builders of real architectures as ONNX graphs, and one model with its real weights."""
