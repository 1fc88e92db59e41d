"""Runs experiments: a grid of trials, one prefill per prompt, one record per trial."""
