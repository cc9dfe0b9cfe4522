"""Public ops."""
