"""Mergers: merge many slots into few."""
