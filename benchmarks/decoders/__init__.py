"""Who takes part in `benchmarks/decoding.py`: each module's `load` gives a `Decode` for one model."""
