"""Runs plans: a plan is lowered to a pipeline of units, which processes work through while a consumer takes rows."""
