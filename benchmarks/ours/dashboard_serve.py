"""Serves the dashboard of a directory, its only argument, until Ctrl-C."""

import sys

from paceline._commands.searches import open_search
from paceline._dashboard.serve import serve

sys.exit(serve(sys.argv[1], open_search, port=0, open_browser=False))
