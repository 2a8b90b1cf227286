"""How a search is shown: in the terminal, as log lines, in a notebook and as plots."""
