"""Spaces: transforms of keys in which merging happens."""
