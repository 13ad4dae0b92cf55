"""Runs that are disturbed on purpose: real processes, a store that misbehaves, and one question.

Did every rank end with the weights of the undisturbed run? `python -m tests.chaos` (`make
test-chaos`) plays some hundreds of schedules; each is data (schedule.py), so that one that failed
can be played again by its number. Not collected by pytest: it takes minutes.
"""
