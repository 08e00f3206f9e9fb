"""What all tests here start with."""

import signal

# A shell starts what it runs in the background with these ignored, and so are they in what the
# tests start from there. With a handler of Python's own they are as usual in children.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
