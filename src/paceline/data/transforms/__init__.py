"""One module for each kind of transform: over batches, over rows, over columns, and by the number of a row."""
