"""The host: this machine, what it lacks, where nodes run on it."""
