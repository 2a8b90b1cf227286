"""Callbacks that forward reports to a trial, from other libraries and from runs the trial starts itself."""
