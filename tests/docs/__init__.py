"""What the documentation and the examples say holds."""
