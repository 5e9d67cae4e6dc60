"""Decides which host should own which shard. Knows nothing of queues and imports nothing of foqs."""
