"""What holds for all tests."""

import signal

# A shell starts what is to run in the background with SIGINT ignored, and children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
