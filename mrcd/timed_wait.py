# SPDX-License-Identifier: BSD-2-Clause
"""Waits for an event with a limit, and can be cancelled at any moment.

asyncio.wait_for of Python 3.11 returns, instead of being cancelled, if the event is set in the same moment: a task
that waits in a loop goes on then, and the process that ends waits for it for ever
(https://github.com/python/cpython/issues/86296).
"""

import asyncio
import math


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Return whether an event was set within `seconds`, which may be infinite."""
    try:
        async with asyncio.timeout(None if math.isinf(seconds) else seconds):
            return await event.wait()
    except TimeoutError:
        return False
