"""What passes reports of other libraries, and of runs that a trial starts itself, on to the trial."""
