"""Maps names to parts; filled through pluggy hooks."""
