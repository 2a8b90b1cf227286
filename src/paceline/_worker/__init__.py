"""What runs inside a worker process: the user's function in the main thread, and our small thread next to it."""
