"""Writes new plugin packages: ``kvfw new``. Imports no torch."""
