"""Import paths that programs written for Ignite use."""
