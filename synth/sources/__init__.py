"""Readers of themes: registries of MCP servers, tool-documentation data sets, product requirements.

Raw layouts come in (a file, a folder, or the pages of a registry's API), :class:`synth.sources.found.Found`
records go out; ``build`` turns them into licensed, filtered, distinct and placed themes.
"""
