"""Measurements: goodput, order, spread over EVs, what programs cost."""
