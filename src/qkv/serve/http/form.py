"""The bodies of forms (multipart/form-data, RFC 7578): bytes to values and files."""

from email.message import Message
from typing import Any

from qkv.values import InvalidValue

MAX_PARTS = 64


def parse_form(content: bytes, content_type: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The values of a form by name, and the content of its files. The value of a file is its name.

    The values of a name that ends in [] are a list.

    >>> body = b'--x\\r\\nContent-Disposition: form-data; name="model"\\r\\n\\r\\ndigits\\r\\n--x--\\r\\n'
    >>> parse_form(body, "multipart/form-data; boundary=x")
    ({'model': 'digits'}, {})
    """
    boundary = find_parameter("Content-Type", content_type, "boundary")
    if not boundary:
        raise InvalidValue("the header Content-Type has no boundary; send it as multipart/form-data; boundary=…")
    _, *parts = (b"\r\n" + content).split(b"\r\n--" + boundary.encode())
    if not parts or not parts[-1].startswith(b"--"):
        raise InvalidValue("the form is not complete: its last boundary is missing; send all of it")
    if len(parts) > MAX_PARTS:
        raise InvalidValue(f"the form has more than {MAX_PARTS} fields; send fewer")
    values: dict[str, Any] = {}
    files: dict[str, bytes] = {}
    for part in parts[:-1]:
        head, _, body = part.partition(b"\r\n\r\n")
        header = next((line for line in head.split(b"\r\n") if line.lower().startswith(b"content-disposition:")), b"")
        given = header.decode("utf-8", "replace").partition(":")[2]
        name = find_parameter("Content-Disposition", given, "name")
        file_name = find_parameter("Content-Disposition", given, "filename")
        if not name:
            raise InvalidValue("a field of the form has no name; send Content-Disposition: form-data; name=…")
        if file_name:
            values[name], files[name] = file_name, body
            continue
        try:
            text = body.decode("utf-8")
        except UnicodeDecodeError:
            raise InvalidValue(f"{name}: not UTF-8; send a file with a file name, and texts as UTF-8", name) from None
        if name.endswith("[]"):
            values.setdefault(name.removesuffix("[]"), []).append(text)
        else:
            values[name] = text
    return values, files


def find_parameter(header: str, value: str, name: str) -> str:
    """A parameter of a header, such as the boundary of a content type; "" if it is missing."""
    message = Message()
    message[header] = value.replace("\r", " ").replace("\n", " ")
    found = message.get_param(name, "", header)
    return found if isinstance(found, str) else str(found[2])
