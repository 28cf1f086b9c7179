"""What the property tests draw from."""

from hypothesis import HealthCheck
from hypothesis import strategies as st

ANY_TEXT = st.text(max_size=40)  # every character but lone surrogates, NUL included
# What random characters rarely make: marks on marks, joined emoji, right-to-left runs with their controls, odd spaces.
MARKS = "ae\u0301\u0323\u0308👨👩👧🏳🌈🇫🇷\u200d\ufe0fשלוםָ\u202e\u202cمرحبا"
SIGNS = "\0\r\n \u2028\ufeff\u00a0\u3000\u200bﬁ½①▁#Ġ\ufffd\U0010ffff'</s>"
HARD_TEXT = st.text(MARKS + SIGNS, max_size=24)
SPELLED = ["</s>", "<pad>", "<extra_id_0>", "<0x41>", "▁", "##a", "Ġ"]
HARD_PARTS = st.sampled_from([*SPELLED, "the cat", " ", "\0", "👨‍👩‍👧", "\n\n", "e\u0301", "\U0010ffff"])
QUICK = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True, "database": None}
