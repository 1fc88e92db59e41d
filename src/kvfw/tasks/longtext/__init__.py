"""Perplexity on long text."""
