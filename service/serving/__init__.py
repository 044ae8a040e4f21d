"""HTTP: requests in, answers out."""
