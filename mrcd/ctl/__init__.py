# SPDX-License-Identifier: BSD-2-Clause
"""mrcctl: shows and controls a host's data plane through the daemon's socket.

main.py registers the commands of commands/, a module each. Those get documents from the daemon (client.py) or from the
pinned tables (documents.py), and print them as JSON or as text (phrases.py, terminal/). packets/ sends probes
and locates faults by them; examine/ has the checks of preflight and doctor.

mrcctl starts fast because the modules of commands/, and those that they import at their top, never import bcc,
numpy, pydantic or aiohttp. A command imports such modules when it runs.
"""
