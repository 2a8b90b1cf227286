"""The form in which batches reach the code that trains: the tensors and arrays of each framework, made ahead."""
