"""Recipes: named compositions of other parts."""
