"""Meeting through an object store: the log of rounds, the all-reduce over it, torchft's manager.

Knows nothing of models, data or SageMaker. Start reading at `allreduce.py`.
"""
