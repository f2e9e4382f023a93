"""The control API: HTTP and JSON on a Unix socket."""
