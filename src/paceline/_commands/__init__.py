"""One module for each command of `paceline`; `cli.py` has the list."""
