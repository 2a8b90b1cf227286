"""Read-only views of runs, built from journals and logs, during a run, after it, or from a copy.

They change nothing, and no run waits for them. The terminal view, the command line and the dashboard all build on this.
"""
