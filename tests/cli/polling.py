"""Waiting for what another process does."""

import time


def wait_until(condition, what):
    """Polls; a minute is far more than anything here needs."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.01)
