"""The Python client of FOQS."""
