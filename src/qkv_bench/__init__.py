"""`qkv bench`: measured throughput against the hardware's limits (a roofline).

command      the command, which qkv finds by the entry point `bench`
cost         the bytes and FLOPs of a forward pass, counted from the network's modules
limits       measures the memory bandwidth and the FLOP/s of the machine
machine      chooses device and dtype; the machine's free memory and name
throughput   measures prefill, decoding, the engine and beam search at growing batch sizes
engine       the time of a step of the engine
training     measures training steps, and profiles one
precisions   measures one sequence at every precision of the weights
display      the table and the picture
"""
