"""A model on disk.

folder    reading and writing a model folder, ours or Hugging Face's
foreign   their config and tensors, through the tables of `models/`
weights   safetensors files, checked on opening, written whole or not at all
hub       a name becomes a folder
card      the README of a model folder
"""

from qkv.store.folder import Stored, read, write

__all__ = ["Stored", "read", "write"]
