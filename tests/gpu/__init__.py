"""Tests that need an NVIDIA GPU which MAX can use; without one they are skipped."""
