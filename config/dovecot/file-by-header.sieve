# Files what spamguard called spam into Junk when it is delivered; lmtp.conf runs it before everybody's own script.
#
# That teaches nothing: only what people do afterwards does. The folder must be called as `doveadm mailbox list` calls it: where a
# namespace has a prefix, INBOX.Junk; else spam stays in INBOX and Dovecot's log says why.
# Check that it works: a mail with the header X-Spam-Flag: YES, which only spamguard can add, is delivered into Junk.
require ["fileinto", "mailbox"];

if header :is "X-Spam-Flag" "YES" {
    fileinto :create "Junk";
    stop;
}
