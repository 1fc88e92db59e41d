"""Refiners: what is done to the slots that were kept. One file each."""
