"""Formulas that several parts share."""
