"""`qkv init`: the recipe for a user's own files, with sizes that suit the data, the machine and the time."""
