"""The encoder of records with payloads: texts are tokenized, and payloads are stored with their sizes."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from qkv.data.cache.writer import EncodedRecord, FieldStorage, RecordEncoder
from qkv.data.payloads import PayloadFormat
from qkv.data.problems import InvalidRecord
from qkv.data.records import Record


class EncodePayloads:
    """Encodes the fields of `encode_texts`, and for each payload a field with its stored value and one with its size.

    `payloads` maps each encoded field to a field of the record and the format of its values.
    """

    def __init__(self, encode_texts: RecordEncoder, payloads: Mapping[str, tuple[str, PayloadFormat]]) -> None:
        self.encode_texts, self.payloads = encode_texts, dict(payloads)
        added = [name for field in payloads for name in (field, f"{field}_size")]
        self.fields: tuple[str, ...] = (*encode_texts.fields, *added)
        self.storage: dict[str, FieldStorage] = {field: format.storage for field, (_, format) in payloads.items()}
        formats = [[field, source, format.fingerprint] for field, (source, format) in payloads.items()]
        settings = json.dumps([encode_texts.fingerprint, formats])
        self.fingerprint = hashlib.sha256(settings.encode()).hexdigest()[:32]

    def __call__(self, records: list[Record]) -> Sequence[EncodedRecord]:
        results = zip(records, self.encode_texts(records), strict=True)
        return [one if isinstance(one, InvalidRecord) else self._add_payloads(record, one) for record, one in results]

    def _add_payloads(self, record: Record, example: Mapping[str, Any]) -> EncodedRecord:
        added: dict[str, Any] = dict(example)
        for field, (source, format) in self.payloads.items():
            if source not in record.fields:
                return InvalidRecord(f"no field {source!r}", "missing field")
            try:
                added[field], size = format.store(record.fields[source])
            except InvalidRecord as invalid:
                return invalid
            added[f"{field}_size"] = list(size)
        return added
