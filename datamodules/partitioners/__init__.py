"""Who holds which columns and which records."""
