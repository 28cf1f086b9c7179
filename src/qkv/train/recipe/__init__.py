"""Recipes: the schema, the values of its keys, reading and writing TOML, and checks."""
