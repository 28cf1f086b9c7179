"""Encoders turn records into integers: one for each type of record. `align.py` aligns tokens with characters."""
