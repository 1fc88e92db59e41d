"""The conformance suite: what must hold of every part, checked on the part itself. Imports neither torch nor models."""
