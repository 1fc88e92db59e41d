"""The base classes of parts, and the light record that announces a part."""
