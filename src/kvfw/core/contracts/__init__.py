"""The interfaces of parts, tasks, metrics and records."""
