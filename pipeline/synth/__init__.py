"""Click logs of the real shape with a planted signal: ``stampede synth criteo|avazu``.

A preset is one world: its values, their shares and their effects on the click never change (but from day to
day where that is asked for), and ``seed`` draws the rows. So two files of one preset with different seeds are
a training and a test set, and the first rows of a longer Criteo file are those of a shorter one.

What there is to learn (AUC on 100,000 rows after 500,000, values seen 4 times or more):

========================================  ======  =====
model                                     criteo  avazu
========================================  ======  =====
logistic regression, one-hot              0.753   0.739
the true first-order effects              0.761   0.749
factorization machine (12 factors)        0.780   0.763
the true logits (``true_logits``)         0.801   0.781
========================================  ======  =====

- ``profile``: the measured shape of each field (criteo.toml, avazu.toml)
- ``draw``: counter-based random numbers and quantile tables
- ``drift``: how values and effects change from day to day
- ``signal``: the logit of a row
- ``text``: columns of numbers to lines of text
- ``generate``: blocks of rows, in order, into a file
"""

from __future__ import annotations

from stampede.pipeline.synth.generate import SynthResult, synthesise, true_logits
from stampede.pipeline.synth.profile import PresetName

__all__ = ["PresetName", "SynthResult", "synthesise", "true_logits"]
