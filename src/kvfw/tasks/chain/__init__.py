"""Long answers."""
