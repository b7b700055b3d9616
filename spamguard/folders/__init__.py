"""Folders teach: people move mail, and that is all the training there is.

    disk ── opener ─────────────────────────────────────────────┐  what may be read: `contract`; `watches`, `inotify` and `mounts`
      └──── opener ── serve ═ protocol ═ remote ────────────────┤  tell what has changed; by way of a process with more rights
                                                                ▼
    watcher ── when, and whose mailbox is first: `schedule` ── looking, at one mailbox
                                                                │
      scan: names that came and went, and the new files read (`names`, `reading`)
      sightings: where each message was last seen (`sightingsfile`)
      reconcile: what follows from both, by the tables of `teaches`; what each folder is: `rules`, `roles`, `doveconf`; `filing`
      lessons: the votes, as many as there may be (`allowance`), and only then the new sightings
      weighing: flags and keywords, where they are asked for (`evidence`)
                                                                │
    once, notes, refusals: what people are told ◄───────────────┤
    the ledger, by `engine` ◄───────────────────────────────────┘

`reach` finds the way to the mailboxes that the settings say. `renewing` reads anew what an older
version has taught; `first` is what somebody asks for who wants taught what they filed before.
"""
