"""The proof that a script resumes exactly: a commit is restored into a shadow run and compared with what went on.

`proof` has what a user calls; `shadow` plays runs in a temporary directory; `compare` and `diagnosis` are pure;
`trace` is what a worker of a shadow run notes down, and imports none of the others.
"""
