"""``confidential-csi inspect``: the whole story of one volume, or of one disk image. It writes nothing.

``argument.py`` says what is meant, ``volume.py`` and ``image.py`` collect, ``story.py`` is what they return.
"""
