"""Which rows come when, and to whom: epochs, shuffling, the shards of the workers, and cutting rows into batches."""
