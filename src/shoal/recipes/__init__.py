"""Complete trainings that people run and read, and what they share.

One folder a recipe. Nothing heavy is imported here: ``shoal train --help`` reads the options of every recipe.
"""
