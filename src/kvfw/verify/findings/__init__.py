"""What is checked, of what, and what came of it."""
