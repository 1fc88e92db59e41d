"""Names to parts, filled through pluggy hooks."""
