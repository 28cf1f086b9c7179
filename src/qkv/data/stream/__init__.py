"""The endless stream of packed sequences: random numbers, the order of examples, packing, and arrays of a batch."""
