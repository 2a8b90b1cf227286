"""Reads journals: `tail` reads new bytes, `lines` decodes them, `replay` rebuilds the run.

A replay fills the `history` of attempts, the `report_table` of metrics, and the `usage` of ranks.
"""
