"""What a client and a host must agree on. It depends on neither of them."""
