"""What fedcom logs, for machines: one JSON object per line on standard error, with FEDCOM_LOG=json."""

import json
import logging
import math
import os
from datetime import UTC, datetime
from typing import Any

from fedcom.errors import ConfigError
from fedcom.formats import printable
from fedcom.redaction import redacted

_LONGEST = 2000  # characters of a text
_USUAL = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}  # what every record has


class Lines(logging.Formatter):
    """Writes a record as JSON: time, level, message, and what was given as `extra`; secrets are left out."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        facts = {"time": time, "level": record.levelname.lower(), "message": record.getMessage()}
        facts |= {key: value for key, value in vars(record).items() if key not in _USUAL}
        if record.exc_info:
            facts["traceback"] = self.formatException(record.exc_info)
        return json.dumps(_plain(facts))


def set_up() -> None:
    """Let fedcom log as the environment says; once is enough, and twice is no harm."""
    form, log = os.environ.get("FEDCOM_LOG", ""), logging.getLogger("fedcom")
    if form not in ("", "json"):
        raise ConfigError(f"FEDCOM_LOG={form!r} in the environment is not json; set it so, or unset it")
    if form and not any(isinstance(handler.formatter, Lines) for handler in log.handlers):
        handler = logging.StreamHandler()
        handler.setFormatter(Lines())
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False  # else others would print it again, as text


def _plain(value: Any) -> Any:
    """A value that JSON can hold, its texts one line each, without control characters."""
    if isinstance(value, dict):
        return {printable(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return redacted(printable(value, _LONGEST))
