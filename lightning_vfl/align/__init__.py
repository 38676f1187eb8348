"""Find the records that several parties have in common, without showing the others (private set intersection).

Every party has a secret key and masks the points of its ids with it (``group``). A list of points goes round a ring,
and every party raises it to its own key (``ring``). A comparer, which has no key, sees which points are equal, and
numbers them (``matching``). The parties look up which of their rows these are. Ids are turned into texts by ``ids``.
Lists travel as files (``files``, ``steps``), or as messages of a federation. Keys with typing errors are compared as
Bloom filters (``fuzzy``), which tell more.
"""
