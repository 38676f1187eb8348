"""Export a trained model party by party, and score new records with what was exported."""
