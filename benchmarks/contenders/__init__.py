"""One module for each program that is compared; `train` of each yields its loss per token, an update at a time.

A module imports at its top what it needs, so that a missing library shows before anything is measured.
"""
