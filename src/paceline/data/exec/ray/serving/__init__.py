"""Serves the rows of a run's datasets to its workers: an actor beside the driver, and the feeds that workers read."""
