"""Dataset -> model: the loader, the fused embedding, models, optimizers, metrics and the loop over them.

The data flows one way: ``loader`` -> ``embedding`` -> ``models`` -> ``loss`` -> ``optim`` (over
:mod:`stampede.kernels`), joined in ``trainer``; ``metrics`` and ``checkpoint`` stand beside it.
"""

if __name__ != "stampede.training":
    raise ImportError("import stampede.training, not training")
