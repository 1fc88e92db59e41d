"""Mergers: many slots into few."""
