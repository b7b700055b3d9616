#!/bin/sh
# Leaves a message for spamguard as a lesson: spamguard-learn.sh CLASS USER. report-spam.sieve and
# report-ham.sieve run it.
#
# It takes some 0.05 s, a third of which is the start of Python, and more on a busy machine;
# learning happens later. If spamguard is installed elsewhere, change the path below.
# Check that it works: as a mail user, run spamguard-learn.sh spam "$USER" < message.eml; echo $?
# prints 0.
exec /opt/spamguard/bin/spamguard teach-pipe --as "$1" --user "$2" --spool /var/spool/spamguard/teach
