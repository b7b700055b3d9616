"""Public corpora of labelled mail: where they are, and how they become a directory with a TREC-style index.

Archives come from the network: must never write under a name that an archive gives, never more than a bounded number of bytes, and
never leave a half-made corpus under its name.
"""
