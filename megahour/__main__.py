"""`python -m megahour`."""

from megahour.cli.main import main

if __name__ == "__main__":
    main()
