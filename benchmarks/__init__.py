"""What the speed claims rest on: one command each, a table and JSON."""
