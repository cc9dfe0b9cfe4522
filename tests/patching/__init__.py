"""Patches of models: what they change, what they leave alone, and the way back."""
