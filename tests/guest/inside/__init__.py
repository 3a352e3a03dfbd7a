"""What guest tests run inside the guest."""
