"""The documents that users see, made from the tables."""
