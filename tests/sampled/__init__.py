"""Mutants drawn at random with a seed, made by ordinary operators, run against the tests that reach them."""
