"""``python -m polarless`` is the ``polarless`` command."""

from polarless.cli import main

if __name__ == "__main__":
    main()
