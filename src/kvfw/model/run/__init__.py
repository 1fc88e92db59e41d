"""Prompts and answers over compressed caches."""
