"""What holds for all tests."""

import signal

# A shell starts what runs in its background with Ctrl-C ignored, and children inherit that; the tests press Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
