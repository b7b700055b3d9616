# Files what spamguard called spam into Junk when it is delivered; lmtp.conf runs it before everybody's own script.
#
# That teaches nothing: only what people do afterwards does.
# Check that it works: a mail with the header X-Spam-Flag: YES, which only spamguard can add, is delivered into Junk.
require ["fileinto", "mailbox"];

if header :is "X-Spam-Flag" "YES" {
    fileinto :create "Junk";
    stop;
}
