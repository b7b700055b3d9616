# A message has left Junk, by a person's hand: hands it to spamguard as ham. Run by imapsieve-2.3.conf or imapsieve-2.4.conf.
#
# Only INBOX and Archive say that it is no spam, as where spamguard watches folders: emptying Junk into a trash of whatever name, or into
# a folder of old spam, must teach nothing.
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
# By their names, as Sieve cannot ask Dovecot 2.3 which folder is the archive: add others in which your users keep good mail.
if string :matches "${mailbox}" ["*Junk*", "*Spam*", "*Trash*"] {
    stop;
}
if not string :matches "${mailbox}" ["INBOX", "Archi*", "INBOX?Archi*", "Arkiv*", "INBOX?Arkiv*", "Arquivo*", "INBOX?Arquivo*"] {
    stop;
}
if environment :matches "imap.user" "*" {
    set "user" "${1}";
}
pipe :copy "spamguard-learn.sh" ["ham", "${user}"];
