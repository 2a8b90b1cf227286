"""Writes rows to files: one module per format, and two kinds of targets, local directories and object stores."""
