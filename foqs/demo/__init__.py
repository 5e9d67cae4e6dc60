"""Real work through a real queue: what `make run` and `make demo` do.

Every file below a folder becomes an item; worker processes compress and
checksum it; the end is a proof that each file was accounted for exactly once.
The queue is used through the public client only: read `produce` and `consume`
for how that looks. Nothing of the host is imported here.
"""
