"""Our environments in the formats of other trainers: verifiers and OpenEnv.

What is written is a small Python package with the bundle, its tasks and a thin adapter; the sandbox, the
state and the verdict stay ours (:mod:`synth.exporters.session`), so a task is judged the same everywhere.
"""
