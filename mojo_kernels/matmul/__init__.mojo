"""Grouped products, convolutions of integers, and rearrangements around products."""
