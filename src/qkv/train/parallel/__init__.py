"""Distributed training: DDP, FSDP2, tensor parallelism, process launch and failure detection."""
