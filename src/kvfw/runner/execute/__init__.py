"""From a plan to records and files."""
