"""API keys: a file has a line `NAME HASH` for each key, and the keys themselves are nowhere.

A key has 256 random bits, so its SHA-256 hash cannot be inverted by guessing, and needs no slow hash function.
"""

import hashlib
import hmac
import re
import secrets
from pathlib import Path

from qkv.errors import QkvError, UsageError
from qkv.files import describe_os_error, report_write_errors

PREFIX = "qkv-"
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
LINE = re.compile(rf"({NAME.pattern})\s+([0-9a-f]{{64}})")


class ApiKeys:
    """The names and hashes of keys."""

    def __init__(self, hashes: dict[str, str]) -> None:
        self.hashes = hashes

    @staticmethod
    def read(path: Path) -> "ApiKeys":
        """Read a file of keys. Empty lines and lines that begin with # are skipped."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise QkvError(
                f"{path}: cannot be read ({describe_os_error(error)}); make a key: qkv new-key {path} NAME"
            ) from error
        hashes: dict[str, str] = {}
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            match = LINE.fullmatch(line.strip())
            if match is None:
                raise QkvError(f"{path}, line {number}: expected NAME and a SHA-256 hash; use qkv new-key {path} NAME")
            hashes[match[1]] = match[2]
        if not hashes:
            raise QkvError(f"{path}: there is no key in this file, so nobody could use the server; use qkv new-key")
        return ApiKeys(hashes)

    def find_name(self, key: str) -> str | None:
        """The name of a key, or None. The time does not depend on how much of a hash matches."""
        found, given = None, hash_key(key)
        for name, stored in self.hashes.items():
            if hmac.compare_digest(stored, given):
                found = name
        return found


def hash_key(key: str) -> str:
    """The hash of a key, in hexadecimal."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def add_key(path: Path, name: str) -> str:
    """Make a key, append its hash to a file that only its owner can read, and return the key."""
    if NAME.fullmatch(name) is None:
        raise UsageError(f"{name!r}: the name of a key has up to 64 letters, digits, dots, dashes and underscores")
    if path.exists() and name in ApiKeys.read(path).hashes:
        raise UsageError(f"{path} has a key {name!r} already; choose another name, or remove its line")
    key = PREFIX + secrets.token_urlsafe(32)
    with report_write_errors(path, "give another path"):
        path.touch(mode=0o600)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{name} {hash_key(key)}\n")
    return key
