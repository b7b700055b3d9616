# Files mail that spamguard tagged as spam into Junk at delivery. lmtp.conf runs it before the
# users' own scripts.
#
# Filing by this script teaches nothing; only later moves by users do. Use the folder name that
# `doveadm mailbox list` shows: in a namespace with a prefix it is INBOX.Junk. With a wrong name
# spam stays in INBOX, and Dovecot's log gives the reason.
# Check that it works: a mail with the header X-Spam-Flag: YES, which only spamguard can add, is
# delivered into Junk.
require ["fileinto", "mailbox"];

if header :is "X-Spam-Flag" "YES" {
    fileinto :create "Junk";
    stop;
}
