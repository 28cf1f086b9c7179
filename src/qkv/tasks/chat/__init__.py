"""Chat with a model: `m.chat` and `qkv chat`.

conversation     cut the history to the context, and generate the assistant's reply
reply_stream     the text of a reply as an iterator
"""
