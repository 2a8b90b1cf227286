"""The results of a search: of each trial, of all trials as columns, and how trials are compared."""
