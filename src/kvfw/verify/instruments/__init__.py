"""What checks look with: observations, tokenizers, meters."""
