"""The page, the HTTP API and the metrics.

`app` puts the parts together. Each request passes its checks, `requests` and `auth`, which find out
who asks; `api` and `views` then call one `service.Service`, which holds what both can do and may
show to whom: a view is in `views`, with a template, what it looks up in `history` or `numbers`, and
the values that it returns in `models`. Of several machines that learn as one, `nodes` has the
service that asks the other machines too. Must never stand in the path of mail, never show one user
another's mail, and never change anything on GET. Read `service` first.
"""
