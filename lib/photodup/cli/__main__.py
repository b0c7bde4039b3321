"""`python -m photodup.cli`."""

from photodup.cli import main

if __name__ == "__main__":
    main()
