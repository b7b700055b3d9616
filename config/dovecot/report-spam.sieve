# A user moved a message into Junk: this script reports it to spamguard as spam. imapsieve-2.3.conf
# or imapsieve-2.4.conf runs it.
#
# Deliveries do not run it. Changed flags are ignored, because mail programs set $Junk by their own
# judgement.
# Check that it works: see imapsieve-2.3.conf.
require ["vnd.dovecot.pipe", "copy", "imapsieve", "environment", "variables", "imap4flags"];

if not environment :is "imap.cause" ["COPY", "APPEND"] {
    stop;
}
if environment :matches "imap.changedflags" "?*" {
    stop;
}
if hasflag "\\Deleted" {
    stop;
}
if environment :matches "imap.user" "*" {
    set "user" "${1}";
}
pipe :copy "spamguard-learn.sh" ["spam", "${user}"];
