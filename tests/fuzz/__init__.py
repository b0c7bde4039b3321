"""Random inputs to the service, to trash and catalogue, to the decoders, and to all that others hand over: `make fuzz`."""
