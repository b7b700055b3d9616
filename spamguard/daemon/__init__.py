"""The processes of the daemon: what each is for, who starts it and what ends it.

The master (`master`, with `startup` and `children`) owns the listening sockets, reads the
configuration and starts the others, each by exec of `python -m` (`spamguard.process`). A *worker*
(`worker`, with `doors`) speaks to the network; each has *scorers* beside it (`proxy.scorer`), which
parse hostile mail and can be killed. The *learner* (`learner`) watches folders and learns lessons,
and the *web* process (`web`) serves page, API and metrics; both are restarted when they end. The
*mailbox broker* (`mailbox_broker`) is a service of its own, where the operator wants to keep the
right to read people's files away from all of these.

Settling (`settle`) is a short-lived process of the master, so that its memory returns. The learner
does not settle: filters are also settled before the first mail, across reloads and where neither
folders nor lessons are configured, and a learner for settling alone would cost memory all the time.

Mail must never depend on the learner, the web process or the broker. Read `master` first.
"""
