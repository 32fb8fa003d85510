"""Entry of `python -m benchmarks`: limits the threads before anything else is imported."""

from benchmarks.one_thread import limit_threads

limit_threads()

from benchmarks.program import main  # noqa: E402 - the libraries read the limits when they are imported

if __name__ == "__main__":
    main()
