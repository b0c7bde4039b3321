"""How a number is made and kept."""
