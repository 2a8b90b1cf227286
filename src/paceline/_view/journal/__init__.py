"""Reads journals: `tail` reads new bytes, `lines` decodes them, `replay` rebuilds the run.

A replay fills the read model (`projection`), the `report_table` of metrics, and the `usage` of ranks.
"""
