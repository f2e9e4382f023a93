"""mrcctl: look at a host's data plane and steer it, through the daemon's socket.

Kept apart from the daemon's modules so that it starts fast: bcc, numpy, pydantic and aiohttp are never
imported at the top of a module here.
"""
