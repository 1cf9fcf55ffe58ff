"""Import paths of handlers that programs written for Ignite use; the code is in ``shoal.handlers``."""
