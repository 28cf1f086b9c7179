"""The endless stream of sequences: random numbers, the order of examples, packing, and the arrays of a batch."""
