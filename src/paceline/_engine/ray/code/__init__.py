"""Prepares nodes for a run: ships the driver's code to them and checks that they see its storage."""
