"""From settings to a checked plan."""
