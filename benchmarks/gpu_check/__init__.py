"""What only a GPU can tell: kernels, training steps, epochs and whole commands, into one JSON document.

``__main__`` runs the sections (:mod:`.sections`) one after the other, each in processes of its own
(:mod:`.process`, :mod:`.worker`). A section is a list of parts; what a part finds is written down at once
(:mod:`.record`), so that a crash, a hang or the end of the time costs what was not done yet, and no more.
"""
