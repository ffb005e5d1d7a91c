"""cas_session beside hand-written SQL and other session stores. Run it with ``python -m benchmarks``."""
