"""The output of the command line: tables and pictures. Each command with such output has a module here."""
