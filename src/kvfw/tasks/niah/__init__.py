"""Needle in a haystack."""
