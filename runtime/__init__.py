"""Runtime: the plug-in execution provider (C++, in `ep/`) and the Python side that finds, registers and uses it.

It needs a compiled model and onnxruntime; neither the compiler's other rooms nor TVM.
"""
