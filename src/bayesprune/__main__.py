"""Make `python -m bayesprune` the same as `bayesprune`."""

from bayesprune.cli import main

if __name__ == "__main__":
    main()
