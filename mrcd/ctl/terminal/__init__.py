"""Text for terminals: tables, histograms, the live view, the full screen."""
