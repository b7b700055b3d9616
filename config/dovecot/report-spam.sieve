# A message has come into Junk, by a person's hand: hands it to spamguard as spam. Run by imapsieve-2.3.conf or imapsieve-2.4.conf.
#
# Deliveries do not come here, and changed flags are left out: mail programs set $Junk by their own judgement.
# Check that it works: see imapsieve-2.3.conf.
require ["vnd.dovecot.pipe", "copy", "imapsieve", "environment", "variables"];

if not environment :is "imap.cause" ["COPY", "APPEND"] {
    stop;
}
if environment :matches "imap.changedflags" "?*" {
    stop;
}
if environment :matches "imap.user" "*" {
    set "user" "${1}";
}
pipe :copy "spamguard-learn.sh" ["spam", "${user}"];
