"""The ensemble that the native backend replaced: transform and embedding as steps of Triton's Python backend, in NumPy.

Kept as it was, to be measured beside its successor. The dense step is the one that serving still has.
"""
