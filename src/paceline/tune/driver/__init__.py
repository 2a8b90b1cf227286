"""The life cycle of a search: trials are created, admitted, run, reported and decided on, all recorded in a journal."""
