"""One command that collects fresh evidence for every claim of the register, and writes a page about it."""
