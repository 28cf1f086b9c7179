"""GGUF files, the format of llama.cpp: read and write their metadata and tensors (extra `gguf`).

gguf_file        the header of a file: metadata, and where each tensor is
architectures    from its metadata and tensor names to the names of a Hugging Face folder
gguf_weights     its tensors, dequantized one at a time
write_gguf       a model as a file
"""
