"""The filter: from raw mail to verdicts, lessons and explanations.

`filter` is the way in; it holds a ledger of lessons, the tables that the ledger folds into
(`store`, `fold`, `snapshot`), and a judge (`judge`) that reads them. `prepare` and
`parallel_extract` read mail for teaching. `policy` turns numbers into labels and actions, and
`explain_text` and `explain_groups` into words. `user_models` counts a user's own votes, `what_if`
shows the effect of a lesson before it is given, `evaluate`, `measures` and `plots` try the filter
on labelled mail.

Tables are always a pure function of the ledger: whatever is judged can be computed again from it.
Read `filter` first.
"""
