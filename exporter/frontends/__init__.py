"""Front ends beside vectors: image windows and models of other people."""
