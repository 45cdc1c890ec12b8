"""`python -m benchmarks.modes`."""

from benchmarks.modes.run import main

if __name__ == "__main__":
    main()
