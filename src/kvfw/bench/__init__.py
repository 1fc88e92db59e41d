"""Measures what compression costs: time, memory and whole evaluations, as ratios taken within one run."""
