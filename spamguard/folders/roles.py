"""What each folder of a mailbox is for, and what the entries of `watch:` come to. Pure.

The role of a folder comes from the configuration, else from Dovecot's special uses, else from its
name, in the languages of the usual mail programs. A folder about which nothing is known is neutral:
users keep mail there, and where it was before stays known. If its name sounds like spam all the
same, it is doubtful. Folders of what users write themselves (sent mail, drafts) are ignored: a slip
of the hand must never teach such mail as spam.

`EvidenceRule` says which flags and keywords count. Users set flags for many reasons, and mail
programs do so by themselves. So no evidence counts unless the operator asks for it, and
contradictory evidence says nothing.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache, lru_cache
from typing import NamedTuple

from spamguard.config.options import Protocol, Settings, Watch
from spamguard.folders.mailboxes import INBOX_NAME, FolderKind, Mailbox, Role, folder_parts
from spamguard.folders.reconcile import EVIDENCE_LABELS, EvidenceSign, MoveTarget

_MAX_CACHED_ROLES = 50_000  # folders: users make and rename as many as they like


# ---- evidence

_FLAG_SIGNS = {"R": EvidenceSign.ANSWERED, "F": EvidenceSign.FLAGGED, "S": EvidenceSign.READ}
_DELETED_FLAG = "T"
# The opposite of $Junk, folded.
_NOT_JUNK_KEYWORDS = frozenset(("nonjunk", "$notjunk", "notjunk"))


class EvidenceRule(NamedTuple):
    """The evidence that counts. read_after: seconds. keywords: folded."""

    signs: frozenset[EvidenceSign] = frozenset()
    read_after: float = 0.0
    keywords: frozenset[str] = frozenset()

    def __str__(self) -> str:
        """One line, to see whether the rule has changed."""
        return " ".join((*sorted(self.signs), f"{self.read_after:g}", *sorted(self.keywords)))

    def applies_to(self, target: MoveTarget) -> bool:
        """Whether any of it can say anything in a folder of this kind."""
        return any((sign, target) in EVIDENCE_LABELS for sign in self.signs)


def evidence_rule(watch: Watch) -> EvidenceRule:
    """The rule of an entry of `watch:`."""
    ham = watch.ham_evidence
    keywords = frozenset(keyword.casefold() for keyword in watch.spam_evidence)
    chosen = {
        EvidenceSign.ANSWERED: ham.answered,
        EvidenceSign.FLAGGED: ham.flagged,
        EvidenceSign.READ: ham.read_after is not None,
        EvidenceSign.KEYWORD: bool(keywords),
    }
    signs = frozenset(sign for sign, counts in chosen.items() if counts)
    return EvidenceRule(signs, ham.read_after or 0.0, keywords)


def find_signs(
    flags: str, keywords: Mapping[str, str], rule: EvidenceRule
) -> frozenset[EvidenceSign]:
    """The signs of a message that count.

    flags: of its file name. keywords: the folder's keywords, by letter.
    """
    signs = {_FLAG_SIGNS[letter] for letter in flags if letter in _FLAG_SIGNS}
    if _DELETED_FLAG in flags:  # nobody left it there: some programs only strike it through
        signs.discard(EvidenceSign.READ)
    names = {keywords[letter].casefold() for letter in flags if letter in keywords}
    if names & rule.keywords and not names & _NOT_JUNK_KEYWORDS:
        signs.add(EvidenceSign.KEYWORD)
    return rule.signs & signs


def choose_sign(
    signs: Collection[EvidenceSign], target: MoveTarget
) -> tuple[EvidenceSign, str] | None:
    """The sign that counts and the class it names; None: nothing is sure.

    Reading is the weakest sign, because users read what they then mark.
    """
    labels = {
        sign: EVIDENCE_LABELS[sign, target]
        for sign in EvidenceSign
        if sign in signs and (sign, target) in EVIDENCE_LABELS
    }
    if len(labels) > 1:
        labels.pop(EvidenceSign.READ, None)
    return next(iter(labels.items())) if len(set(labels.values())) == 1 else None


# ---- roles by name

HAM_ROLE = Role(FolderKind.CLASS, "ham")
SPAM_ROLE = Role(FolderKind.CLASS, "spam")
TRASH_ROLE = Role(FolderKind.TRASH)
NEUTRAL_ROLE = Role(FolderKind.NEUTRAL)
DOUBTFUL_ROLE = Role(FolderKind.NEUTRAL, doubtful=True)
IGNORED_ROLE = Role(FolderKind.IGNORED)

SPECIAL_USES = {  # RFC 6154, RFC 8457
    "\\junk": SPAM_ROLE,
    "\\trash": TRASH_ROLE,
    "\\archive": HAM_ROLE,
    "\\sent": IGNORED_ROLE,
    "\\drafts": IGNORED_ROLE,
    "\\all": IGNORED_ROLE,
    "\\flagged": IGNORED_ROLE,
    "\\important": IGNORED_ROLE,
}

_JUNK_NAMES = {
    "English": (
        "Junk, Spam, Bulk, Bulk Mail, Junk E-mail, Junk Email, Junk Mail, Spam Mail, Unsolicited"
    ),
    "German": (
        "Spamverdacht, Unerwünscht, Unerwünschte E-Mails, Unerwünschte Werbung, Werbung, "
        "Junk-E-Mail"
    ),
    "French": "Courrier indésirable, Indésirables, Pourriel, Pourriels, Messages indésirables",
    "Spanish": "Correo no deseado, Correo basura, No deseado, No deseados, Basura electrónica",
    "Italian": "Posta indesiderata, Indesiderata, Posta spazzatura",
    "Portuguese": (
        "Lixo Eletrónico, Lixo Eletrônico, Correio eletrónico não solicitado, Correio não "
        "solicitado, Não solicitado"
    ),
    "Catalan": "Correu brossa, Correu no desitjat",
    "Galician": "Correo lixo, Correo non desexado",
    "Basque": "Zabor-posta, Zabor posta",
    "Romanian": "E-mail nedorit, Mesaje nedorite, Nedorite",
    "Dutch": "Ongewenst, Ongewenste e-mail, Ongewenste mail, Ongewenste post, Reclame",
    "Swedish": "Skräppost, Skräp-e-post, Oönskad e-post",
    "Norwegian": "Søppelpost, Søppel-e-post, Uønsket e-post, Useriøs e-post",
    "Danish": "Uønsket mail, Uønsket e-mail, Uønsket post, Uønsket, Reklamemail",
    "Finnish": "Roskaposti, Roskapostit",
    "Icelandic": "Ruslpóstur",
    "Estonian": "Rämpspost",
    "Latvian": "Mēstules, Surogātpasts, Nevēlamais pasts",
    "Lithuanian": "Šlamštas, Nepageidaujami laiškai, Brukalas, Brukalai",
    "Polish": "Niechciane, Wiadomości-śmieci, Wiadomości śmieci, Niechciana poczta",
    "Czech": "Nevyžádaná pošta, Nevyžádané, Hromadná pošta",
    "Slovak": "Nevyžiadaná pošta, Nevyžiadané",
    "Hungarian": "Levélszemét, Kéretlen levelek, Kéretlen",
    "Slovenian": "Neželena pošta, Neželeno, Vsiljena pošta",
    "Croatian": "Neželjena pošta, Neželjeno, Bezvrijedna pošta",
    "Serbian": "Нежељена пошта, Нежељено, Непожељна пошта",
    "Bulgarian": "Нежелана поща, Нежелани, Спам",
    "Macedonian": "Несакана пошта, Ѓубре",
    "Russian": "Нежелательная почта, Нежелательные, Спам, Сомнительные",
    "Ukrainian": "Небажана пошта, Спам, Сміття",
    "Belarusian": "Непажаданая пошта, Спам",
    "Greek": "Ανεπιθύμητα, Ανεπιθύμητη αλληλογραφία, Ενοχλητική αλληλογραφία",
    "Turkish": "Önemsiz, Önemsiz E-posta, Gereksiz, Gereksiz E-posta, İstenmeyen, İstenmeyen Posta",
    "Hebrew": "דואר זבל, ספאם",
    "Arabic": "البريد غير الهام, البريد غير المرغوب فيه, بريد مزعج, البريد المزعج, غير مرغوب",
    "Persian": "هرزنامه, هرزنامه‌ها",
    "Hindi": "जंक ईमेल, स्पैम",
    "Thai": "อีเมลขยะ, จดหมายขยะ, สแปม",
    "Vietnamese": "Thư rác, Email rác",
    "Indonesian": "Email Sampah",
    "Chinese": "垃圾邮件, 垃圾郵件, 垃圾箱, 垃圾电子邮件, 垃圾電子郵件, 广告邮件",
    "Japanese": "迷惑メール, 迷惑メイル",
    "Korean": "스팸, 스팸 메일, 스팸 편지함, 정크 메일",
}
_TRASH_NAMES = {
    "English": "Trash, Deleted, Deleted Items, Deleted Messages, Bin, Wastebasket",
    "German": "Papierkorb, Gelöscht, Gelöschte Elemente, Gelöschte Objekte, Mülleimer",
    "French": "Corbeille, Éléments supprimés, Messages supprimés, Poubelle",
    "Spanish": "Papelera, Elementos eliminados, Mensajes eliminados, Eliminados",
    "Italian": "Cestino, Posta eliminata, Messaggi eliminati, Elementi eliminati",
    "Portuguese": (
        "Lixo, Lixeira, Reciclagem, Itens Eliminados, Itens Excluídos, Mensagens excluídas"
    ),
    "Catalan": "Paperera, Elements suprimits",
    "Galician": "Papeleira",
    "Basque": "Zakarrontzia",
    "Romanian": "Coș de gunoi, Elemente șterse, Gunoi",
    "Dutch": "Prullenbak, Prullenmand, Verwijderde items, Verwijderd",
    "Swedish": "Papperskorgen, Borttagna objekt, Borttaget",
    "Norwegian": "Papirkurv, Papirkurven, Slettede elementer, Slettet",
    "Danish": "Papirkurv, Slettet post, Slettede beskeder",
    "Finnish": "Roskakori, Poistetut, Poistetut viestit",
    "Icelandic": "Rusl, Ruslafata, Eyddur póstur",
    "Estonian": "Prügikast, Prügi, Kustutatud",
    "Latvian": "Miskaste, Atkritne, Dzēstās",
    "Lithuanian": "Šiukšlinė, Šiukšliadėžė, Ištrinta",
    "Polish": "Kosz, Elementy usunięte, Usunięte",
    "Czech": "Koš, Odstraněná pošta",
    "Slovak": "Kôš, Odstránené položky, Odstránená pošta",
    "Hungarian": "Kuka, Lomtár, Törölt elemek",
    "Slovenian": "Smeti, Izbrisano",
    "Croatian": "Smeće, Otpad, Izbrisano",
    "Serbian": "Смеће, Отпад, Избрисано",
    "Bulgarian": "Кошче, Изтрити",
    "Macedonian": "Корпа, Избришани",
    "Russian": "Корзина, Удаленные, Удалённые",
    "Ukrainian": "Кошик, Видалені",
    "Belarusian": "Сметніца, Выдаленыя",
    "Greek": "Κάδος απορριμμάτων, Απορρίμματα, Διαγραμμένα",
    "Turkish": "Çöp, Çöp Kutusu, Silinmiş Öğeler, Silinen Öğeler",
    "Hebrew": "אשפה, פריטים שנמחקו",
    "Arabic": "المهملات, سلة المهملات, المحذوفات, العناصر المحذوفة",
    "Persian": "زباله‌دان, حذف‌شده‌ها",
    "Hindi": "कचरा, रद्दी, हटाए गए आइटम",
    "Thai": "ถังขยะ, รายการที่ถูกลบ",
    "Vietnamese": "Thùng rác, Đã xóa",
    "Indonesian": "Tempat Sampah, Sampah, Item Terhapus",
    "Chinese": "已删除, 已删除邮件, 已刪除, 刪除的郵件, 废件箱, 回收站, 回收筒, 垃圾桶",
    "Japanese": "ゴミ箱, ごみ箱, 削除済みアイテム",
    "Korean": "휴지통, 지운 편지함, 삭제된 항목",
}
_ARCHIVE_NAMES = {
    "English": "Archive, Archives, Archived",
    "German": "Archiv, Archive",
    "French": "Archive, Archives",
    "Spanish": "Archivo, Archivos, Archivado, Archivados",
    "Italian": "Archivio, Archivi, Archiviata",
    "Portuguese": "Arquivo, Arquivos, Arquivados, Arquivo Morto",
    "Catalan": "Arxiu, Arxius",
    "Galician": "Arquivo",
    "Basque": "Artxiboa",
    "Romanian": "Arhivă, Arhive",
    "Dutch": "Archief, Archieven",
    "Swedish": "Arkiv, Arkiverat",
    "Norwegian": "Arkiv, Arkivert",
    "Danish": "Arkiv, Arkiver, Arkiveret",
    "Finnish": "Arkisto, Arkistot",
    "Icelandic": "Safn, Geymsla",
    "Estonian": "Arhiiv",
    "Latvian": "Arhīvs",
    "Lithuanian": "Archyvas, Archyvai",
    "Polish": "Archiwum, Archiwa",
    "Czech": "Archiv, Archivy",
    "Slovak": "Archív, Archívy",
    "Hungarian": "Archívum, Archív",
    "Slovenian": "Arhiv",
    "Croatian": "Arhiva, Arhiv",
    "Serbian": "Архива",
    "Bulgarian": "Архив, Архиви",
    "Macedonian": "Архива",
    "Russian": "Архив, Архивы",
    "Ukrainian": "Архів, Архіви",
    "Belarusian": "Архіў",
    "Greek": "Αρχείο, Αρχειοθήκη",
    "Turkish": "Arşiv",
    "Hebrew": "ארכיון",
    "Arabic": "الأرشيف, أرشيف",
    "Persian": "بایگانی",
    "Hindi": "संग्रह",
    "Thai": "เก็บถาวร, ที่เก็บถาวร",
    "Vietnamese": "Lưu trữ",
    "Indonesian": "Arsip",
    "Chinese": "归档, 存档, 封存, 已归档",
    "Japanese": "アーカイブ",
    "Korean": "보관, 보관함, 아카이브",
}

# What users write, other views of what lies elsewhere, and what Dovecot keeps of expunged mail.
_IGNORED_NAMES = {
    "English": (
        "Sent, Sent Items, Sent Messages, Sent Mail, Drafts, Draft, Templates, Outbox, Unsent "
        "Messages, EXPUNGED"
    ),
    "German": (
        "Gesendet, Gesendete Objekte, Gesendete Elemente, Gesendete Nachrichten, Entwürfe, "
        "Vorlagen, Postausgang"
    ),
    "French": "Envoyés, Éléments envoyés, Messages envoyés, Brouillons, Modèles, Boîte d'envoi",
    "Spanish": (
        "Enviados, Elementos enviados, Mensajes enviados, Borradores, Plantillas, Bandeja de salida"
    ),
    "Italian": "Inviata, Posta inviata, Messaggi inviati, Bozze, Modelli, Posta in uscita",
    "Portuguese": (
        "Enviados, Enviadas, Itens enviados, Mensagens enviadas, Rascunhos, Modelos, Caixa de saída"
    ),
    "Catalan": "Enviats, Elements enviats, Esborranys, Plantilles",
    "Galician": "Enviadas, Borradores",
    "Basque": "Bidalita, Zirriborroak",
    "Romanian": "Trimise, Elemente trimise, Ciorne, Schițe",
    "Dutch": "Verzonden, Verzonden items, Verzonden berichten, Concepten, Sjablonen, Postvak uit",
    "Swedish": "Skickat, Skickade objekt, Skickade, Utkast, Mallar",
    "Norwegian": "Sendt, Sendte elementer, Sendte, Utkast, Kladd, Maler",
    "Danish": "Sendt, Sendte beskeder, Sendt post, Kladder, Udkast, Skabeloner",
    "Finnish": "Lähetetyt, Lähetetyt viestit, Luonnokset, Mallit",
    "Icelandic": "Sent, Sendur póstur, Drög",
    "Estonian": "Saadetud, Saadetud kirjad, Mustandid",
    "Latvian": "Nosūtītās, Nosūtītie, Melnraksti",
    "Lithuanian": "Išsiųsta, Išsiųsti, Juodraščiai",
    "Polish": "Wysłane, Elementy wysłane, Kopie robocze, Szkice, Robocze, Szablony",
    "Czech": "Odeslané, Odeslaná pošta, Koncepty, Rozepsané, Šablony",
    "Slovak": "Odoslané, Odoslaná pošta, Koncepty, Rozpísané",
    "Hungarian": "Elküldött, Elküldött elemek, Elküldöttek, Piszkozatok, Vázlatok",
    "Slovenian": "Poslano, Osnutki",
    "Croatian": "Poslano, Poslane poruke, Skice, Nacrti",
    "Serbian": "Послато, Послате, Нацрти, Недовршено",
    "Bulgarian": "Изпратени, Чернови",
    "Macedonian": "Испратени, Недовршени",
    "Russian": "Отправленные, Черновики, Шаблоны",
    "Ukrainian": "Надіслані, Відправлені, Чернетки",
    "Belarusian": "Адпраўленыя, Чарнавікі",
    "Greek": "Απεσταλμένα, Πρόχειρα",
    "Turkish": "Gönderilmiş, Gönderilmiş Öğeler, Gönderilenler, Gönderilen, Taslaklar",
    "Hebrew": "נשלחו, פריטים שנשלחו, דואר שנשלח, טיוטות",
    "Arabic": "المرسلة, العناصر المرسلة, البريد المرسل, المسودات",
    "Persian": "فرستاده‌ها, ارسال‌شده‌ها, پیش‌نویس‌ها",
    "Hindi": "भेजे गए, भेजे गए आइटम, ड्राफ़्ट",
    "Thai": "ส่งแล้ว, รายการที่ส่ง, แบบร่าง, ร่าง",
    "Vietnamese": "Đã gửi, Mục đã gửi, Thư đã gửi, Nháp, Thư nháp",
    "Indonesian": "Terkirim, Item Terkirim, Konsep, Draf",
    "Chinese": "已发送, 已发送邮件, 寄件備份, 已傳送, 草稿, 草稿箱, 草稿夾",
    "Japanese": "送信済み, 送信済みアイテム, 送信済みトレイ, 下書き, 草稿",
    "Korean": "보낸 편지함, 보낸 메일함, 임시 보관함, 임시보관함",
}

# Views of Gmail: what it shows there lies elsewhere, too. Below [Gmail] only, as users give folders
# of their own such names.
_GMAIL_VIEWS = (
    "All Mail, Important, Starred, Alle Nachrichten, Wichtig, Markiert, Tous les messages, "
    "Suivis, Todos, Importantes, Destacados, Tutti i messaggi, Importanti, Speciali, Todos os "
    "e-mails, Todo o correio, Importante, Com estrela, Alle berichten, Belangrijk, Met ster, "
    "Wszystkie, Ważne, Oznaczone gwiazdką, Všechny zprávy, Důležité, S hvězdičkou, Tüm "
    "Postalar, Önemli, Yıldızlı, Вся почта, Важное, Помеченные, すべてのメール, "
    "重要, スター付き, 所有邮件, "
    "已加星标, 所有郵件, 已加星號, 전체보관함, 중요, 별표편지함"
)

_SPAM_WORDS = re.compile(r"spam|junk|спам|スパム|스팸")

RoleLookup = Callable[[str], Role]
"""The role of a folder by its directory."""


def parse_role(text: str) -> Role:
    """A role of the configuration: neutral, trash, ignored, or the name of a class."""
    if text in (FolderKind.NEUTRAL, FolderKind.TRASH, FolderKind.IGNORED):
        return Role(FolderKind(text))
    return Role(FolderKind.CLASS, text)


def find_role(
    name: tuple[str, ...],
    configured: Mapping[str, Role] | None = None,
    special: Mapping[tuple[str, ...], str] | None = None,
) -> Role:
    """The role of a folder by its name, from the top.

    A folder about which nothing is known has the role of the nearest folder above it about which
    something is, except INBOX. It is not ham if a name below that one usually says something else:
    Archive/Spam is neutral. If the whole name says nothing, dots part levels too: OfflineIMAP makes
    directories such as INBOX.Spam and Archive.2026.

    configured: pattern to role; the first that fits counts. "/" parts levels, `*` stands for
    anything, case does not matter, and a folder below INBOX may be written as if it were at the
    top. special: name to special use, as `doveconf` reads it.
    """
    role = _nearest_role(name, configured, special)
    if role is None and len(name) == 1 and "" not in (dotted := tuple(name[0].split("."))):
        role = _nearest_role(dotted, configured, special)
    if role is not None:
        return role
    return DOUBTFUL_ROLE if _SPAM_WORDS.search(_fold_name(name[-1:])) else NEUTRAL_ROLE


def _nearest_role(
    name: tuple[str, ...],
    configured: Mapping[str, Role] | None,
    special: Mapping[tuple[str, ...], str] | None,
) -> Role | None:
    name = _strip_inbox(name)
    uses = {_fold_name(_strip_inbox(folder)): use for folder, use in (special or {}).items()}
    for length in range(len(name), 0, -1):
        role = _exact_role(_fold_name(name[:length]), configured or {}, uses)
        if role is not None and (length == len(name) or name[:length] != INBOX_NAME):
            # Whether a name below is usually for anything but ham.
            is_other = any(
                _usual_roles().get(_fold_name((part,)), HAM_ROLE) != HAM_ROLE
                for part in name[length:]
            )
            return NEUTRAL_ROLE if role == HAM_ROLE and is_other else role
    return None


def _exact_role(name: str, configured: Mapping[str, Role], uses: Mapping[str, str]) -> Role | None:
    for pattern, role in configured.items():
        if _name_pattern(pattern).fullmatch(name):
            return role
    for use in uses.get(name, "").lower().split():
        if use in SPECIAL_USES:
            return SPECIAL_USES[use]
    return _usual_roles().get(name)


@cache
def _usual_roles() -> dict[str, Role]:
    tables = (
        (_IGNORED_NAMES, IGNORED_ROLE),
        (_JUNK_NAMES, SPAM_ROLE),
        (_TRASH_NAMES, TRASH_ROLE),
        (_ARCHIVE_NAMES, HAM_ROLE),
    )
    roles = {
        _fold_name((name,)): role
        for table, role in tables
        for names in table.values()
        for name in names.split(", ")
    }
    views = {_fold_name((name,)): IGNORED_ROLE for name in _GMAIL_VIEWS.split(", ")}
    in_gmail = {
        f"{above}/{name}": role
        for above in ("[gmail]", "[google mail]")
        for name, role in (roles | views).items()
    }
    return roles | in_gmail | {_fold_name(INBOX_NAME): HAM_ROLE}


@cache
def _name_pattern(pattern: str) -> re.Pattern[str]:
    name = _fold_name(_strip_inbox(tuple(pattern.split("/"))))
    return re.compile(".*".join(map(re.escape, name.split("*"))), re.DOTALL)


def _strip_inbox(name: tuple[str, ...]) -> tuple[str, ...]:
    """A name without the INBOX that some servers put above all other folders."""
    return name[1:] if len(name) > 1 and name[0].casefold() == "inbox" else name


def _fold_name(name: tuple[str, ...]) -> str:
    """One line in which case, width, composition, kinds of hyphens and white space make no
    difference.
    """
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", "/".join(name)).casefold())
    return " ".join(re.sub(r"[-‐‑–—_]", "-", text).split())


# ---- entries of `watch:`


class WatchRule(NamedTuple):
    """What an entry of `watch:` comes to. we_file: as of `is_spam_filed`."""

    watch: Watch
    role: RoleLookup
    we_file: bool
    evidence: EvidenceRule


def watch_rules(settings: Settings, special: Mapping[tuple[str, ...], str]) -> list[WatchRule]:
    """The rules of all entries. special: as of `find_role`."""
    return [
        WatchRule(
            watch, role_lookup(watch, special), is_spam_filed(watch, settings), evidence_rule(watch)
        )
        for watch in settings.watch
    ]


def role_lookup(watch: Watch, special: Mapping[tuple[str, ...], str]) -> RoleLookup:
    """The roles of the folders of an entry. special: as of `find_role`."""
    configured = {pattern: parse_role(text) for pattern, text in watch.folders}

    @lru_cache(_MAX_CACHED_ROLES)
    def role(directory: str) -> Role:
        name = folder_parts(directory)
        return find_role(name, configured, special) if name else IGNORED_ROLE

    return role


def is_spam_filed(watch: Watch, settings: Settings) -> bool:
    """Whether what we tag as spam is put into Junk on delivery."""
    return is_next_hop(watch, settings) if watch.we_file is None else watch.we_file


def is_next_hop(watch: Watch, settings: Settings) -> bool:
    """Whether it is a Maildir that we deliver to ourselves."""
    hops = [listener.next_hop.to for listener in settings.listeners]
    return any(hop.protocol is Protocol.MAILDIR and str(hop.path) == watch.maildir for hop in hops)


def find_unmatched_watches(settings: Settings, mailboxes: Iterable[Mailbox]) -> tuple[str, ...]:
    """A warning for each pattern that no mailbox fits, except Maildirs that we make with the first
    mail.
    """
    matched = {mailbox.watch for mailbox in mailboxes}
    return tuple(
        f"watch: nothing fits {watch.maildir} yet: "
        "until something does, moving mail there teaches nothing"
        for number, watch in enumerate(settings.watch)
        if number not in matched and not is_next_hop(watch, settings)
    )
