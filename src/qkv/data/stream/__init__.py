"""From encoded examples to an endless, seeded, resumable stream of packed sequences."""
