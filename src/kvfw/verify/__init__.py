"""The conformance suite: checks that a part keeps its contract. Imports neither torch nor models."""
