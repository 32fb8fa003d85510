"""Kernel families in TIR, the library builder: the only room that uses TVM.

Importing this package does not import TVM; building a library does.
"""
