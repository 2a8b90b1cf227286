"""Assembles a run and drives it to its end: what `Trainer.fit()` calls. `run_session` is the entry point."""
