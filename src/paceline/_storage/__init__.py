"""Run storage: stages, commits, verifies and retains checkpoints, and lets one driver at a time write a run."""
