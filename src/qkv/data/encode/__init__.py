"""From records to token ids, one encoder for each kind of record."""
