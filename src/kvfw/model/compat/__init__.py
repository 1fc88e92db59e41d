"""Compatibility with transformers: differences between its versions, its exceptions and its hooks."""
