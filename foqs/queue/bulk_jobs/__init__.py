"""Bulk jobs: durable changes of all items that match a filter. See docs/design/bulk-jobs.md."""
