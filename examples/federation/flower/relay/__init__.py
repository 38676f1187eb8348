"""A Flower app that carries the frames of a lightning-vfl federation, and can neither read nor change them."""
