"""What a training costs its records in privacy: checks, plans, charges and books."""
