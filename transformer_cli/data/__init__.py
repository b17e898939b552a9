"""From text files to batches: corpora → encoded → batching → batch, loader.

Called by training, evaluation and the command line.
"""
