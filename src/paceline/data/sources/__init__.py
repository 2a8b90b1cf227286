"""One module per kind of source: what the `read_*` and `from_*` functions create."""
