"""The properties of every kind of part."""
