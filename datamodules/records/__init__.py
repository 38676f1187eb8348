"""Records in memory and on disk, readers of files, and scaling."""
