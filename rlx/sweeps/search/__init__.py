"""Search: hydra/sweeper=optuna draws the values of each trial from what the trials before it came to.

settings    search=NAME and search.KEY=VALUE
space       what is searched: intervals, ranges and choices by key
trials      what sweep.json keeps of each trial
sampling    the values of the next trial
study       the trials as an Optuna study: pruning, and a journal that Optuna's own tools read
source      trials as jobs of a sweep
asha        successive halving that pauses runs at rungs and goes on with the best of them
population  population based training: members go on from the checkpoints of better ones
best        what a search came to: the best values, their importance, an experiment that runs them
"""
