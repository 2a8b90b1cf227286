"""What ends a trial, or the whole search."""
