"""The configuration of an experiment.

`schema` defines every key, `read` turns TOML into an `Experiment`, `describe` writes the reference, and
`checks` refuses combinations that cannot work or that would expose a client.
"""
