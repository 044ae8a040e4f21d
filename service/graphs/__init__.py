"""What is added to a model before it is served."""
