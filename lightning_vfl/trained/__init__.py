"""What a trained model keeps of its training records, and the tables that it writes."""
