"""Caches that hold compressed slots, in memory and in files."""
