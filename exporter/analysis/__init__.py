"""Facts about a network: its costs, its exactness and its promises."""
