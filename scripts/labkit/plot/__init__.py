"""Pictures as SVG. Pure."""
