"""Short reprs: Python that makes the value again, without what is as by default."""

from __future__ import annotations

from dataclasses import MISSING, fields


class Short:
    """A dataclass whose repr leaves out what is as by default."""

    def __repr__(self) -> str:
        values = [(field, getattr(self, field.name)) for field in fields(self)]  # type: ignore[arg-type]
        shown = [
            f"{value!r}" if field.default is MISSING else f"{field.name}={value!r}"
            for field, value in values
            if field.default is MISSING or value != field.default
        ]
        return f"{type(self).__name__}({', '.join(shown)})"
