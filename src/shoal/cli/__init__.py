"""The ``shoal`` command: one file a subcommand, none of which is imported before it is chosen."""
