"""From a name to a model."""
