"""What the flags and keywords of a message say about it, where the operator asks for such evidence.
Pure.

People set flags for many reasons, and mail programs by themselves: so nothing here counts unless it
is asked for, and contradictory evidence says nothing.

What each folder of a mailbox is for: as configured, as Dovecot says, as folders of that name
usually are. Pure.

A folder nobody spoke of, of no usual name, is neutral: people keep mail there, and what they move
on from there is known by it. If its name speaks of spam all the same, that is in doubt. What they
write themselves (sent mail, drafts) is ignored: it is no mail that came, and must never be taught
as spam by a slip of the hand.

What an entry of `watch:` comes to: the role of each folder, whether somebody files spam before a
person sees it, what counts. Pure.
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

_FLAG_SIGNS = {"R": EvidenceSign.ANSWERED, "F": EvidenceSign.FLAGGED, "S": EvidenceSign.READ}
_DELETED_FLAG = "T"
_NOT_JUNK_KEYWORDS = frozenset(
    ("nonjunk", "$notjunk", "notjunk")
)  # what says the opposite of $Junk, folded


class EvidenceRule(NamedTuple):
    """Which evidence counts. read_after: seconds. keywords: folded."""

    signs: frozenset[EvidenceSign] = frozenset()
    read_after: float = 0.0
    keywords: frozenset[str] = frozenset()

    def __str__(self) -> str:
        """All of it in one line, to see that it is what it was."""
        return " ".join((*sorted(self.signs), f"{self.read_after:g}", *sorted(self.keywords)))

    def applies_to(self, into: MoveTarget) -> bool:
        """Whether any of it may say anything in a folder of this kind."""
        return any((sign, into) in EVIDENCE_LABELS for sign in self.signs)


def evidence_rule(watch: Watch) -> EvidenceRule:
    """By an entry of `watch:`."""
    ham, keywords = (
        watch.ham_evidence,
        frozenset(keyword.casefold() for keyword in watch.spam_evidence),
    )
    chosen = {
        EvidenceSign.ANSWERED: ham.answered,
        EvidenceSign.FLAGGED: ham.flagged,
        EvidenceSign.READ: ham.read_after is not None,
        EvidenceSign.KEYWORD: bool(keywords),
    }
    return EvidenceRule(
        frozenset(sign for sign, counts in chosen.items() if counts),
        ham.read_after or 0.0,
        keywords,
    )


def find_signs(flags: str, names: Mapping[str, str], what: EvidenceRule) -> frozenset[EvidenceSign]:
    """Those that count. flags: of a file's name. names: the folder's keywords, by their letters."""
    found = {_FLAG_SIGNS[letter] for letter in flags if letter in _FLAG_SIGNS}
    if _DELETED_FLAG in flags:
        found.discard(
            EvidenceSign.READ
        )  # nobody left it there: some programs only strike through what is deleted
    given = {names[letter].casefold() for letter in flags if letter in names}
    if given & what.keywords and not given & _NOT_JUNK_KEYWORDS:
        found.add(EvidenceSign.KEYWORD)
    return what.signs & found


def choose_sign(
    found: Collection[EvidenceSign], into: MoveTarget
) -> tuple[EvidenceSign, str] | None:
    """The sign that counts and the class it names; None: nothing. Reading is the weakest, as people
    read what they then mark.
    """
    told = [
        (sign, EVIDENCE_LABELS[sign, into])
        for sign in EvidenceSign
        if sign in found and (sign, into) in EVIDENCE_LABELS
    ]
    strong = [one for one in told if one[0] is not EvidenceSign.READ] or told
    return strong[0] if len({label for _, label in strong}) == 1 else None


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
    "English": "Junk, Spam, Bulk, Bulk Mail, Junk E-mail, Junk Email, Junk Mail, Spam Mail, Unsolicited",
    "German": "Spamverdacht, Unerwünscht, Unerwünschte E-Mails, Unerwünschte Werbung, Werbung, Junk-E-Mail",
    "French": "Courrier indésirable, Indésirables, Pourriel, Pourriels, Messages indésirables",
    "Spanish": "Correo no deseado, Correo basura, No deseado, No deseados, Basura electrónica",
    "Italian": "Posta indesiderata, Indesiderata, Posta spazzatura",
    "Portuguese": "Lixo Eletrónico, Lixo Eletrônico, Correio eletrónico não solicitado, Correio não solicitado, Não solicitado",
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
    "Portuguese": "Lixo, Lixeira, Reciclagem, Itens Eliminados, Itens Excluídos, Mensagens excluídas",
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

# what people write, other views of what lies elsewhere, what Dovecot keeps of expunged mail
_IGNORED_NAMES = {
    "English": "Sent, Sent Items, Sent Messages, Sent Mail, Drafts, Draft, Templates, Outbox, Unsent Messages, EXPUNGED",
    "German": "Gesendet, Gesendete Objekte, Gesendete Elemente, Gesendete Nachrichten, Entwürfe, Vorlagen, Postausgang",
    "French": "Envoyés, Éléments envoyés, Messages envoyés, Brouillons, Modèles, Boîte d'envoi",
    "Spanish": "Enviados, Elementos enviados, Mensajes enviados, Borradores, Plantillas, Bandeja de salida",
    "Italian": "Inviata, Posta inviata, Messaggi inviati, Bozze, Modelli, Posta in uscita",
    "Portuguese": "Enviados, Enviadas, Itens enviados, Mensagens enviadas, Rascunhos, Modelos, Caixa de saída",
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

# what Gmail shows there lies elsewhere, too; below [Gmail] only, as people call folders of their
# own so
_GMAIL_VIEWS = (
    "All Mail, Important, Starred, Alle Nachrichten, Wichtig, Markiert, Tous les messages, Suivis, Todos, Importantes, Destacados, "
    "Tutti i messaggi, Importanti, Speciali, Todos os e-mails, Todo o correio, Importante, Com estrela, Alle berichten, Belangrijk, "
    "Met ster, Wszystkie, Ważne, Oznaczone gwiazdką, Všechny zprávy, Důležité, S hvězdičkou, Tüm Postalar, Önemli, Yıldızlı, Вся почта, "
    "Важное, Помеченные, すべてのメール, 重要, スター付き, 所有邮件, 已加星标, 所有郵件, 已加星號, 전체보관함, 중요, 별표편지함"
)

_SPAM_WORDS = re.compile(r"spam|junk|спам|スパム|스팸")


def parse_role(text: str) -> Role:
    """What the configuration calls a role: neutral, trash, ignored, or the name of a class."""
    words: dict[str, Role] = {
        kind: Role(kind) for kind in (FolderKind.NEUTRAL, FolderKind.TRASH, FolderKind.IGNORED)
    }
    return words.get(text, Role(FolderKind.CLASS, text))


def find_role(
    name: tuple[str, ...],
    configured: Mapping[str, Role] | None = None,
    special: Mapping[tuple[str, ...], str] | None = None,
) -> Role:
    """The role of the folder of that name, from the top.

    configured: pattern to role, the first that fits is taken; levels are parted by "/", `*` stands
    for anything, case does not matter, and a folder below the INBOX may be called as if it were at
    the top. special: name to special use, as `doveconf` found it. A folder of which nothing is
    known has the role of the nearest one above it of which something is, the INBOX apart. Ham is in
    doubt where the names below it say something else: Archive/Spam is neutral. Dots part levels,
    too, where the whole name says nothing: OfflineIMAP makes directories such as INBOX.Spam and
    Archive.2026.
    """
    dotted = tuple(name[0].split(".")) if len(name) == 1 else name
    found = _nearest_role(name, configured, special)
    if found is None and "" not in dotted:
        found = _nearest_role(dotted, configured, special)
    return found or (DOUBTFUL_ROLE if _SPAM_WORDS.search(_fold_name(name[-1:])) else NEUTRAL_ROLE)


def _nearest_role(
    name: tuple[str, ...],
    configured: Mapping[str, Role] | None,
    special: Mapping[tuple[str, ...], str] | None,
) -> Role | None:
    wanted = _strip_inbox(name)
    uses = {_fold_name(_strip_inbox(folder)): use for folder, use in (special or {}).items()}
    for length in range(len(wanted), 0, -1):
        found = _exact_role(_fold_name(wanted[:length]), configured or {}, uses)
        if found is not None and (length == len(wanted) or wanted[:length] != INBOX_NAME):
            return (
                NEUTRAL_ROLE
                if found == HAM_ROLE and any(map(_is_usual_name, wanted[length:]))
                else found
            )
    return None


def _exact_role(name: str, configured: Mapping[str, Role], uses: Mapping[str, str]) -> Role | None:
    for pattern, found in configured.items():
        if _name_pattern(pattern).fullmatch(name):
            return found
    known = [SPECIAL_USES[use] for use in uses.get(name, "").lower().split() if use in SPECIAL_USES]
    return known[0] if known else _usual_roles().get(name)


def _is_usual_name(name: str) -> bool:
    """Whether a folder of that name is usually for anything but ham."""
    return _usual_roles().get(_fold_name((name,)), HAM_ROLE) != HAM_ROLE


@cache
def _usual_roles() -> dict[str, Role]:
    listed = (
        (_IGNORED_NAMES, IGNORED_ROLE),
        (_JUNK_NAMES, SPAM_ROLE),
        (_TRASH_NAMES, TRASH_ROLE),
        (_ARCHIVE_NAMES, HAM_ROLE),
    )
    found = {
        _fold_name((name,)): each
        for names, each in listed
        for language in names.values()
        for name in language.split(", ")
    }
    views = {_fold_name((name,)): IGNORED_ROLE for name in _GMAIL_VIEWS.split(", ")}
    in_gmail = {
        f"{above}/{name}": each
        for above in ("[gmail]", "[google mail]")
        for name, each in (found | views).items()
    }
    return found | in_gmail | {_fold_name(INBOX_NAME): HAM_ROLE}


@cache
def _name_pattern(pattern: str) -> re.Pattern[str]:
    name = _fold_name(_strip_inbox(tuple(pattern.split("/"))))
    return re.compile(".*".join(map(re.escape, name.split("*"))), re.DOTALL)


def _strip_inbox(name: tuple[str, ...]) -> tuple[str, ...]:
    """Without the INBOX that some servers put above all other folders."""
    return name[1:] if len(name) > 1 and name[0].casefold() == "inbox" else name


def _fold_name(name: tuple[str, ...]) -> str:
    """One line in which case, width, accents' encoding, kinds of hyphens and white space make no
    difference.
    """
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", "/".join(name)).casefold())
    return " ".join(re.sub(r"[-‐‑–—_]", "-", text).split())


_ROLE_CACHE_SIZE = (
    50_000  # folders whose roles are kept: people make and rename as many as they like
)

RoleLookup = Callable[[str], Role]
"""The role of a folder by its directory."""


class WatchRule(NamedTuple):
    """watch: as configured. we_file: see `is_filed`. asked: the evidence that counts."""

    watch: Watch
    role: RoleLookup
    we_file: bool
    evidence: EvidenceRule


def watch_rules(settings: Settings, special: Mapping[tuple[str, ...], str]) -> list[WatchRule]:
    """All of them. special: as in `roles.role`."""
    return [
        WatchRule(
            watch, role_lookup(watch, special), is_spam_filed(watch, settings), evidence_rule(watch)
        )
        for watch in settings.watch
    ]


def role_lookup(watch: Watch, special: Mapping[tuple[str, ...], str]) -> RoleLookup:
    """special: as in `roles.role`."""
    configured = {pattern: parse_role(text) for pattern, text in watch.folders}

    @lru_cache(_ROLE_CACHE_SIZE)
    def role(directory: str) -> Role:
        name = folder_parts(directory)
        return find_role(name, configured, special) if name else IGNORED_ROLE

    return role


def is_spam_filed(watch: Watch, settings: Settings) -> bool:
    """Whether what we tag as spam is put into Junk on delivery."""
    return is_next_hop(watch, settings) if watch.we_file is None else watch.we_file


def find_unmatched_watches(settings: Settings, found: Iterable[Mailbox]) -> tuple[str, ...]:
    """What is wrong with patterns that no mailbox fits, in words; not with those of Maildirs that
    we make with the first mail.
    """
    fitting = {mailbox.watch for mailbox in found}
    some = [
        watch
        for number, watch in enumerate(settings.watch)
        if number not in fitting and not is_next_hop(watch, settings)
    ]
    return tuple(
        f"watch: nothing fits {watch.maildir} yet: until something does, moving mail there teaches nothing"
        for watch in some
    )


def is_next_hop(watch: Watch, settings: Settings) -> bool:
    """Whether it is a Maildir that we deliver to ourselves."""
    hops = [listener.next_hop.to for listener in settings.listeners]
    return any(hop.protocol is Protocol.MAILDIR and str(hop.path) == watch.maildir for hop in hops)
