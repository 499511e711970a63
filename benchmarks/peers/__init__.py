"""One training step and one epoch of the same DeepFM, by Stampede and by what one would take instead."""
