"""What parts, tasks, metrics and records promise each other."""
