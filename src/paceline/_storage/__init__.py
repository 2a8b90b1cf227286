"""Checkpoints and the run's directory: staged, committed, verified, retained, held by one driver at a time."""
