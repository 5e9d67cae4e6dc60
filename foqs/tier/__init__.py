"""What the hosts of a tier do together: they pass calls on, and tell each other what they have."""
