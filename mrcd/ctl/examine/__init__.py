"""`mrcctl preflight` and `mrcctl doctor`: small checks of a machine read through machine.py. Imported late."""
