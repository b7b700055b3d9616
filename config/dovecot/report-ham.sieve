# A user moved a message out of Junk: this script reports it to spamguard as ham. imapsieve-2.3.conf
# or imapsieve-2.4.conf runs it.
#
# Only moves into INBOX and Archive teach ham, as with watched folders: emptying Junk into a trash
# folder of any name, or into a folder of old spam, must teach nothing.
# Check that it works: see imapsieve-2.3.conf, with a mail that you move from Junk to INBOX.
require ["vnd.dovecot.pipe", "copy", "imapsieve", "environment", "variables", "imap4flags"];

if not environment :is "imap.cause" "COPY" {
    stop;
}
if environment :matches "imap.changedflags" "?*" {
    stop;
}
if hasflag "\\Deleted" {
    stop;
}
if environment :matches "imap.mailbox" "*" {
    set "mailbox" "${1}";
}
# These are folder names, because Sieve cannot ask Dovecot 2.3 for the archive's role. Add other
# folders where your users keep ham.
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
