"""Properties, the part under test, and verdicts."""
