"""`megahour` and `python -m megahour`."""

import sys


def main() -> None:
    """Run the command line. Ctrl-C while its modules load ends without a traceback, too."""
    try:
        from megahour.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
