"""Kernel families in TIR, CPU targets as data, and the library builder; the only room that uses TVM.

Importing this package does not import TVM: `pitc.codegen.library` does so when a library is built.
"""
