"""A sweep is one object: its jobs, their manifest on disk, the launchers that run them, and one answer at the end.

manifest    sweep.json: what was asked for, and what became of each job
settings    what was typed, taken apart: jobs, launcher, folder
grid        the jobs of a plain sweep, all checked before the first one starts
job         one job, in whatever process a launcher runs it
launchers   where jobs run: processes of their own (local), this process (basic), Ray, joblib, submitit
driver      the loop: asks a source for tasks, hands them to a launcher, writes down what happens
table       what a person sees of it
start       the commands: begin a sweep, resume it
"""
