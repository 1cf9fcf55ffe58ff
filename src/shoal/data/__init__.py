"""Which sample goes to which rank at which step, and the loaders that bring it."""
