# A message has left Junk, by a person's hand: hands it to spamguard as ham. Run by imapsieve-2.3.conf or imapsieve-2.4.conf.
#
# Only a folder in which mail is kept says that it is no spam: emptying Junk into Trash must teach nothing.
# Check that it works: see imapsieve-2.3.conf, with a mail that is moved from Junk to INBOX.
require ["vnd.dovecot.pipe", "copy", "imapsieve", "environment", "variables"];

if not environment :is "imap.cause" "COPY" {
    stop;
}
if environment :matches "imap.changedflags" "?*" {
    stop;
}
if environment :matches "imap.mailbox" "*" {
    set "mailbox" "${1}";
}
# By their names, as Sieve cannot ask Dovecot 2.3 which folder is the trash: add the names that your users have.
if string :matches "${mailbox}" ["Trash", "*/Trash", "*.Trash", "Deleted *", "*/Deleted *", "*.Deleted *", "Papierkorb", "*/Papierkorb",
    "*.Papierkorb", "Corbeille", "Papelera", "Cestino", "Junk", "Junk/*", "Junk.*", "Spam", "Spam/*", "Spam.*", "Bulk", "Sent", "Drafts"] {
    stop;
}
if environment :matches "imap.user" "*" {
    set "user" "${1}";
}
pipe :copy "spamguard-learn.sh" ["ham", "${user}"];
