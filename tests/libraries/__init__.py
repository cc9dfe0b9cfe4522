"""The libraries that people use, with the backend found by its name."""
