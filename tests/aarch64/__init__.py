"""pitc on 64-bit Arm, under an emulator: `python -m tests.aarch64`."""
