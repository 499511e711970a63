"""``python -m stampede``: the ``stampede`` command."""

from stampede.cli import main

main()
