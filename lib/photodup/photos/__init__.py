"""Photos in, decisions out: scan, hash, group, review, remove."""
