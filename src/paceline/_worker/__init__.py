"""What runs inside a worker process: the user's function in the main thread, our small thread beside it."""
