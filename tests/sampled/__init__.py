"""Mutants that nobody chose: made by ordinary operators, drawn with a seed, run against the tests that reach them."""
