"""What differs between versions of transformers, and what has to be caught around it."""
