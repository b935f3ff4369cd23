"""Environments that others have published, as bundles of ours.

A reader of one layout (:mod:`synth.importers.authors`, :mod:`~synth.importers.envscaler`,
:mod:`~synth.importers.bfcl`, :mod:`~synth.importers.tau2`) makes :class:`~synth.importers.base.Source`
records: sources, state, schemas, tasks. No imported code runs here:
:func:`~synth.importers.base.publish` wraps it as an MCP server over a folder (:mod:`synth.env.host`) in the
sandbox, with clock, ids and randomness held still, and from there everything is as with any imported server.
Tasks pass :mod:`synth.importers.tasks`.
"""
