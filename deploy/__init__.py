"""What puts the project where it runs."""
