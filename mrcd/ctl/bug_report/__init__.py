"""Collects the files of `mrcctl bugreport` and removes secrets from them."""
