"""``python -m kvfw`` is the command line."""

from kvfw.cli.main import main

main()
