"""Exits with 0 if the service on this machine is well: the container's health check.

python -m examples.service.health [PORT]
"""

import sys
from http.client import HTTPConnection, HTTPException

TIMEOUT = 4.0
OK = 200


def is_well(port: int) -> bool:
    """Whether /health answers 200. No proxy is asked."""
    connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == OK
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(not is_well(int(sys.argv[1]) if len(sys.argv) > 1 else 8000))
