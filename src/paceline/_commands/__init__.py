"""One module per `paceline` subcommand; the list is in `cli.py`."""
