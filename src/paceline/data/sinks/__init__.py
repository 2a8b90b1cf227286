"""Where rows go to: one module for each format, and the two kinds of places that files can be put in."""
