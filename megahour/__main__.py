"""`python -m megahour`."""

from megahour.cli import main

if __name__ == "__main__":
    main()
