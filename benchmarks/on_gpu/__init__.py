"""The parts of `benchmarks/gpu.py`, and what they share (`work`, `profiling`)."""
