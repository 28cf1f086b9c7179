"""The output of the command line: a module for each verb that prints tables or draws pictures."""
