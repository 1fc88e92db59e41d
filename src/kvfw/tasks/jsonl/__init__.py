"""Published benchmarks from files of their own formats."""
