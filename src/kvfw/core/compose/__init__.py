"""From a composition's text to its parts and budgets."""
