"""Random inputs to the service, to trash and catalogue, and to the decoders: `make fuzz`."""
