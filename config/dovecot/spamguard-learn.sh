#!/bin/sh
# Hands a message to spamguard as a lesson: spamguard-learn.sh CLASS USER, run by report-spam.sieve and report-ham.sieve.
#
# It takes some 0.05 s, a third of it for Python to start, more where the machine is busy: learning comes after. While spamguard is down the
# lesson waits in a directory. Where spamguard lies elsewhere, say so below.
# Check that it works: as a user of mail, spamguard-learn.sh spam "$USER" < message.eml; echo $? says 0.
exec /usr/local/bin/spamguard teach-pipe --as "$1" --user "$2" --socket /run/spamguard/teach.sock --spool /var/spool/spamguard/teach
