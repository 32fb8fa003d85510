"""From kernels as TIR to one shared object: compilers, their cache, and the linker."""
