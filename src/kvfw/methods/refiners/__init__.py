"""Refiners: change the slots that were kept. One file each."""
