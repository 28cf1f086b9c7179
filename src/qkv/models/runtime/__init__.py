"""Helpers of the networks and of the code that runs them; not needed to understand a Transformer.

length      checks the length of an input        skip_init   builds a network without sampling weights
eval_mode   no dropout, no gradients             memory      the free memory of a device
"""
