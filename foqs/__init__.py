"""A distributed, multi-tenant, durable priority queue on sharded MySQL."""
