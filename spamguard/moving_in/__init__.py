"""Moving in from another filter: what it knew about words, taken in as a standing start.

Reads files of strangers: must never take memory or time that does not follow from their length, and never raise anything but
`SourceError` on what is in them. What a list becomes here is `bayes.prior`'s business, how it is kept `ledger.wordlists`'.
"""
