"""From planned batches to tensors: the loader and its worker processes."""
