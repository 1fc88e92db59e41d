"""Scorers: a score per slot and KV head."""
