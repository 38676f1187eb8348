"""``python -m lightning_vfl``."""

from lightning_vfl.cli import main

if __name__ == "__main__":
    main()
