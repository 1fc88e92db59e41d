"""What kvfw sees in a model."""
