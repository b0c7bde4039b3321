"""The `photodup` command. Each command imports what it needs when it runs, so `--help` stays instant."""

import sys

import typer

from photodup.errors import PhotodupError

app = typer.Typer(
    name="photodup",
    help="Find near-duplicate photos, and study how the embedding behind it is served.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line; a `PhotodupError` becomes one sentence on stderr and exit status 2."""
    try:
        app()
    except PhotodupError as error:
        print(f"photodup: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
