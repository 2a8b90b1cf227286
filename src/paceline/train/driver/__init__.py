"""Assembles a run and drives it to its end: what `Trainer.fit()` calls. `run_driver` is the entry point."""
