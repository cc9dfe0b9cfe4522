"""Measurements of the backend against eager and Inductor. Not part of the wheel; run them from a clone."""
