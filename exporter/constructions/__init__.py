"""One module per theorem."""
