"""`python -m photodup`: the same as the command `photodup`."""

from photodup.cli import main

if __name__ == "__main__":
    main()
