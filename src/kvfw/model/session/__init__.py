"""Compression while a model runs."""
