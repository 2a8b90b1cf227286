"""Converts batches to the tensors and arrays of each framework, and prefetches them."""
