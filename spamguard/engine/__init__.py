"""The filter: from raw mail to verdicts, lessons and explanations.

`filter` is the way in; it holds a ledger of lessons, the tables that the ledger folds into
(`fold`, and as files `store`), and a judge (`judge`) that reads them. `prepare` reads mail for
teaching. `policy` turns numbers into labels and actions, and `explain_text` into words. `evaluate`
and `measures` try the filter on labelled mail.

Tables are always a pure function of the ledger: whatever is judged can be computed again from it.
Read `filter` first.
"""
