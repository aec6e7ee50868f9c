"""The section `statistics` of an agreement: what may be asked, and the numbers that follow from it."""
