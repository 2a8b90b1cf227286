"""Shared code of the trainers for gradient-boosted trees. It imports no library; each has its own folder."""
