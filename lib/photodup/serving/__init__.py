"""What answers embedding requests, how it is started and how it is found."""
