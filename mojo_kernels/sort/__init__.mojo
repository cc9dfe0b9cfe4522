"""Sorting, selection, search, scans, segments and mode."""
