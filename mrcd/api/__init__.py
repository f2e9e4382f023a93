"""Serves the control API: HTTP and JSON on a unix socket."""
