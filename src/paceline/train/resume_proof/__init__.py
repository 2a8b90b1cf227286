"""Prove that a script resumes exactly: restore a commit into a shadow run and compare it with the original run.

`proof` has the user's function; `shadow` executes runs in a temporary directory; `compare` and `diagnosis` are pure;
`trace` records notes in a worker of a shadow run, and imports none of the others.
"""
