"""A model on disk.

folder    reading and writing a model folder, ours or Hugging Face's
foreign   their config and tensors, through the tables of `models/`
weights   safetensors files, checked on opening, written whole or not at all
hub       a name becomes a folder
card      the README of a model folder
staging   a folder is written whole or not at all
whole     what may be written
ctranslate2, onnx    folders for other engines
"""

from qkv.store.model_folder import StoredModel, read_model, write_model

__all__ = ["StoredModel", "read_model", "write_model"]
