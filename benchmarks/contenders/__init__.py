"""One module for each program that is compared, as `contender.py` describes it.

`train_*` do one update a turn and return its loss per token as `value`; `decode_*` translate `count` sentences from
`first` on and return how many `tokens` they put out. A module imports at its top what it needs, so that a missing
library shows before anything is measured.
"""
