"""``ohmformer explore``: a local page on which a graph is drawn and a Transformer's answer watched layer by layer.

The page's whole state is one small validated value (:mod:`~.state`), which is also its permalink. What
a user does turns one state into the next (:mod:`~.turns`), and a state determines everything that is
shown (:mod:`~.compute`). The server remembers nothing; sliding and playing happen in the browser.
"""
