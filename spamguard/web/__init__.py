"""The page, the HTTP API and the metrics.

`app` puts the parts together. Each request passes its checks, `requests` and `auth`, which find out
who asks; `api` and `pages` then call one `Service`, which holds what both can do and may show to
whom. `queries` and `statistics` look up what it shows, and `workers` run them in threads of their
own, so that a slow query delays no other request. Of several machines that learn as one, `nodes`
has the service that asks the other machines too. Lessons go to `learning.lessons`, like all
lessons. Must never stand in the path of mail, never show one user another's mail, and never change
anything on GET. Read `service` first.

Each thing has one place: a page is a view in `pages` or `review` and a template, a query a
method in `queries` or `quarantine` or, where it counts, a function in `statistics`, an action a
method of `service.Service`, which the API then calls in one line, and a value that it returns a
dataclass in `models`.
"""
