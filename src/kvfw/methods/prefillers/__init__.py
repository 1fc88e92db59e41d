"""Prefillers: which tokens of the prompt the model reads. One file each."""
