"""From an observation and a budget to a smaller state."""
