"""Import paths of engines that programs written for Ignite use; the code is in ``shoal.handlers``."""
