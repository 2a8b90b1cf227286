"""What decides which trials go on: FIFO, ASHA, HyperBand, median stopping, PBT, PB2."""
