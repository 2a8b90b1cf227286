"""Runs as people look at them: read from journals and logs, during a run, after it, or of a copy. Nothing is changed,
and nothing waits for it. The terminal's words, the command line and the dashboard all stand on this."""
