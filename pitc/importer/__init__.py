"""From a file on disk to a checked model: whatever is wrong with it is said here, in one line."""

from pitc.importer.load import load_model, load_source

__all__ = ["load_model", "load_source"]
