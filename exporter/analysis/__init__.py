"""What is known of a network: accounting, exactness, promises."""
