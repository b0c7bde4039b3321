"""photodup: find near-duplicate photos, and study how the embedding behind it is served."""
