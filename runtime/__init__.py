"""Runtime: the plug-in execution provider, and the Python side that finds, registers and uses it.

The provider is C++, in `ep/`. The room needs a compiled model and onnxruntime; neither
the compiler's other rooms nor TVM.
"""
