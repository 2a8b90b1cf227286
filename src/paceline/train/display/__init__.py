"""What a person sees of a run: live block on a terminal, plain lines, notebook. `terminal` is the entry point."""
