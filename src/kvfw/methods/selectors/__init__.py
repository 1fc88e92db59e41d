"""Selectors: which slots to keep, from scores and a budget."""
