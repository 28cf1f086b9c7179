"""Records to integers: an encoder for each kind of record, chats, and the alignment of tokens with characters."""
