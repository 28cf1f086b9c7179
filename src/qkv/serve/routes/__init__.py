"""The routes: OpenAI's API, qkv's own tasks, and operations."""
