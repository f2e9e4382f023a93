# SPDX-License-Identifier: BSD-2-Clause
"""Makes the pictures of the web page for docs/, in a lab, with a real browser."""
