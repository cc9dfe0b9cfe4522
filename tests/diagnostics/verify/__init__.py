"""Comparing regions with torch, and what is said of a wrong one."""
