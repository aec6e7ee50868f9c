"""The paper's figures: their panels by name, our runs of them, and both side by side."""
