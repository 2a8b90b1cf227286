"""One module for each kind of source; what the `read_` and `from_` functions make."""
