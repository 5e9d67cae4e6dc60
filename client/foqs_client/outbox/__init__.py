"""The outbox: items that are written in a user's own transaction, and the relay that enqueues them.

Built so far is the pure core of the relay; docs/design/outbox.md says how the rest will work.
"""
