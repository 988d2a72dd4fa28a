"""One line of JSON for each log record. For the operator alone: its time depends on the records."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "color_message"}
"""What every record has; what else it has, its caller gave as a field."""


class JsonLines(logging.Formatter):
    """Time, level and message, then the fields: scope, draws, epsilon, ..."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "level": record.levelname, "message": record.getMessage()}
        line |= {name: value for name, value in vars(record).items() if name not in STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_as_json() -> None:
    """Log everything so, but no line a request: callers would decide how much is written."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for name in ("uvicorn", "uvicorn.access"):  # uvicorn has set them up before it imports the application
        logging.getLogger(name).handlers.clear()
    logging.getLogger("uvicorn").propagate = True
    malformed = logging.getLogger("uvicorn.error")  # it warns of each request that is none
    malformed.addFilter(lambda record: record.levelno != logging.WARNING)
    logging.captureWarnings(capture=True)
