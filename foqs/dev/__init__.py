"""Servers of this machine, started from installed packages: for trying out, for tests and for measuring. Not for production."""
