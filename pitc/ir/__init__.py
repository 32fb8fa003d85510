"""What ONNX cannot say: tensor expressions, axes, masks, facts, refusals, kernel plans."""
