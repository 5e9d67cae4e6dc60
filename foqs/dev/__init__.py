"""Servers on this machine, started from installed packages, for trials, tests and benchmarks. Not for production."""
