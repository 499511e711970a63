"""What the report of a run shows: each file reads or draws one part of it."""
