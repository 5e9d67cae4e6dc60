"""Real work through a real queue: `make run` and `make demo`.

Each file below a folder becomes an item; worker processes compress and checksum it;
the end is a proof that each file was accounted for exactly once. The queue is used
through the public client only; `demo_producer` and `demo_consumer` show how. Nothing
of the host is imported here.
"""
