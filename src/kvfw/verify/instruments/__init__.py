"""Tools of the checks: random observations, a tokenizer, meters."""
