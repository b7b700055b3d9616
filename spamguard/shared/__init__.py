"""Several machines that learn as one: the log of lessons in PostgreSQL.

PostgreSQL does one job: it gives every vote its place in one log, durably and once. `schema.sql`
makes its tables and the functions by which nodes change them, and `postgres` calls these. Each node
keeps a copy of the log in its own ledger (`spamguard.ledger.shared`), from which it learns as a
single machine does, and one process of the node, the courier, talks to the database.

Beside the log, the web processes of nodes ask one another (`peers`).

Mail must never depend on the database: no process that judges or learns may load the driver.
"""
