"""One module per kind of transform: on batches, on rows, on columns, and by row number."""
