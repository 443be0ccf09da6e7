"""Questions: the bytes that a page sends, read with suspicion, as an object.

A question is small but for its texts, which are files that a reader drops on the page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from weft.errors import InputError

MOST_BYTES = 32 << 20  # of a question
MOST_OUTSIDE = 1 << 18  # of them outside its texts

# A text that never ends, ends with the question: no place is looked at twice.
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.?[^"\\]*+)*+(?:"|\Z)', re.DOTALL)


def length_of(written: str) -> int:
    """The number of bytes that a header announces; InputError where it is none, or too large."""
    if not written.isascii() or not written.isdigit():
        raise InputError("the question has no length")
    digits = written.lstrip("0") or "0"
    if len(digits) > len(str(MOST_BYTES)) or int(digits) > MOST_BYTES:
        raise InputError(f"longer than the {MOST_BYTES >> 20} MiB that are read")
    return int(digits)


def read_question(content: bytes) -> Mapping[str, object]:
    """The object that was sent."""
    if sum(map(len, _TEXT.split(content))) > MOST_OUTSIDE:
        raise InputError(
            f"more than {MOST_OUTSIDE >> 10} KiB outside its texts; a file is sent as one text"
        )
    try:
        asked = json.loads(content.decode())
    except (ValueError, RecursionError):
        raise InputError("the question is no JSON") from None
    if not isinstance(asked, dict):
        raise InputError("a question is an object")
    return asked
