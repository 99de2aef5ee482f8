"""Loggers: callbacks that write each row of metrics somewhere."""
