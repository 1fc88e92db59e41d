"""A plugin that ends the process when it is imported."""

import sys

sys.exit("not today")
