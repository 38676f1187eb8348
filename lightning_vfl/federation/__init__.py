"""Parties as processes on hosts of their own, with the recipe of a simulation.

A ``Place`` runs one end of a protocol: ``RoundsAtParty`` and ``RoundsAtServer`` the rounds of ``SplitVFL``,
``EventsAtParty`` and ``EventsAtServer`` the events of ``AsyncVFL``. A party asks over a ``Link``; the
server's ``Hub`` holds requests and answers; ``frames`` and ``letters`` are what travels. ``session`` is the life of a
process: it compares recipes (``reception``), aligns records (``alignment``), trains, and keeps a ``record``.
"""
