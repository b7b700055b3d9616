/* HTML without its tags: the loop over characters of `spamguard.mail.html`, which defines what a
 * tag is. */
#include "kernel.h"

#include <string.h>

typedef struct {
    const char *bytes; /* UTF-8 */
    size_t size;
    PyObject *breaks; /* the names of tags at which a reader sees a gap */
} Page;

#define CACHE_SLOTS 256
enum { BREAK = 1, LINK = 2, LINK_END = 4, IMAGE = 8 }; /* flags of a name */

/* A name, or attributes, and what it means. */
typedef struct {
    const char *bytes;
    size_t size;
    unsigned means;
} CacheSlot;

/* The results so far. Names and attributes are keys of dictionaries: each once, in order. A small
 * cache of recent ones saves making objects, because most of them repeat. */
typedef struct {
    char *visible;
    size_t size;
    PyObject *names, *attributes;
    CacheSlot name_slots[CACHE_SLOTS], attribute_slots[CACHE_SLOTS];
    size_t images;
    int within, linked; /* within a link; whether an image stood there */
} ScannedPage;

typedef struct {
    size_t name_end, end; /* of its attributes */
} Tag;

static int is_blank(char byte) {
    return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r' || byte == '\f';
}

static int ends_name(char byte) {
    return byte == '<' || byte == '>' || byte == '/' || is_blank(byte);
}

static int opens_name(char byte) {
    return byte == '/' || byte == '!' || byte == '?' || (byte >= 'a' && byte <= 'z');
}

static size_t find(const Page *page, size_t at, char byte) {
    const char *hit = memchr(page->bytes + at, byte, page->size - at);
    return hit == NULL ? page->size : (size_t)(hit - page->bytes);
}

/* Reads the tag whose name begins at `at`; returns whether there is one. */
static int take_tag(const Page *page, size_t at, Tag *tag) {
    if (at == page->size || !opens_name(page->bytes[at]))
        return 0;
    for (at++; at < page->size && !ends_name(page->bytes[at]); at++)
        ;
    tag->name_end = at;
    while (at < page->size && page->bytes[at] != '<' && page->bytes[at] != '>')
        at++;
    tag->end = at;
    return 1;
}

static void show(ScannedPage *scanned, const char *bytes, size_t size) {
    memcpy(scanned->visible + scanned->size, bytes, size);
    scanned->size += size;
}

static int is(const char *bytes, size_t size, const char *name) {
    return size == strlen(name) && memcmp(bytes, name, size) == 0;
}

static void follow_links(ScannedPage *scanned, unsigned means) {
    if (means & (LINK | LINK_END))
        scanned->within = means & LINK;
    if (means & IMAGE) {
        scanned->images++;
        scanned->linked |= scanned->within;
    }
}

/* The slot of the cache for a text; it may hold another text, which is then replaced. */
static CacheSlot *slot_of(CacheSlot *slot, const char *bytes, size_t size) {
    uint64_t first = 0, last = 0;
    size_t edge = size < sizeof first ? size : sizeof first;
    memcpy(&first, bytes, edge);
    memcpy(&last, bytes + size - edge, edge);
    return slot +
           ((first ^ (last + size) * UINT64_C(0x9E3779B97F4A7C15)) * UINT64_C(0xD6E8FEB86659FD93) >>
            56);
}

static int holds(const CacheSlot *slot, const char *bytes, size_t size) {
    return slot->bytes != NULL && slot->size == size && memcmp(slot->bytes, bytes, size) == 0;
}

/* Adds a text to the keys and returns it, owned by the caller; NULL with an error set. */
static PyObject *keep(PyObject *keys, const char *bytes, size_t size) {
    PyObject *text = PyUnicode_FromStringAndSize(bytes, (Py_ssize_t)size);
    if (text == NULL || PyDict_SetItem(keys, text, Py_None) == 0)
        return text;
    Py_DECREF(text);
    return NULL;
}

/* -1 with an error set. */
static int keep_attributes(ScannedPage *scanned, const char *bytes, size_t size) {
    CacheSlot *slot = slot_of(scanned->attribute_slots, bytes, size);
    if (holds(slot, bytes, size))
        return 0;
    PyObject *text = keep(scanned->attributes, bytes, size);
    if (text == NULL)
        return -1;
    Py_DECREF(text);
    *slot = (CacheSlot){bytes, size, 0};
    return 0;
}

/* The flags of a name; -1 with an error set. */
static int keep_name(ScannedPage *scanned, const Page *page, const char *bytes, size_t size) {
    CacheSlot *slot = slot_of(scanned->name_slots, bytes, size);
    if (holds(slot, bytes, size))
        return (int)slot->means;
    PyObject *text = keep(scanned->names, bytes, size);
    int means = text == NULL ? -1 : PySet_Contains(page->breaks, text);
    Py_XDECREF(text);
    if (means < 0)
        return -1;
    means |= is(bytes, size, "a")     ? LINK
             : is(bytes, size, "/a")  ? LINK_END
             : is(bytes, size, "img") ? IMAGE
                                      : 0;
    *slot = (CacheSlot){bytes, size, (unsigned)means};
    return means;
}

/* -1 with an error set. */
static int add(ScannedPage *scanned, const Page *page, size_t start, const Tag *tag) {
    if (keep_attributes(scanned, page->bytes + tag->name_end, tag->end - tag->name_end) < 0)
        return -1;
    int means = keep_name(scanned, page, page->bytes + start, tag->name_end - start);
    if (means < 0)
        return -1;
    if (means & BREAK)
        show(scanned, " ", 1);
    follow_links(scanned, (unsigned)means);
    return 0;
}

/* Copies everything between the tags, which is never longer than the page. -1 with an error set. */
static int take_apart(const Page *page, ScannedPage *scanned) {
    Tag tag;
    for (size_t at = 0; at < page->size;) {
        size_t open = find(page, at, '<');
        show(scanned, page->bytes + at, open - at);
        if (open == page->size)
            break;
        if (!take_tag(page, open + 1, &tag)) {
            show(scanned, "<", 1);
            at = open + 1;
            continue;
        }
        if (add(scanned, page, open + 1, &tag) < 0)
            return -1;
        at = tag.end + (tag.end < page->size && page->bytes[tag.end] == '>');
    }
    return 0;
}

static PyObject *apart(const Page *page) {
    ScannedPage scanned = {
        .visible = PyMem_Malloc(page->size + 1), .names = PyDict_New(), .attributes = PyDict_New()};
    PyObject *result = NULL;
    if (scanned.visible == NULL)
        PyErr_NoMemory();
    else if (scanned.names != NULL && scanned.attributes != NULL && take_apart(page, &scanned) == 0)
        result = Py_BuildValue("s#OOnN", scanned.visible, (Py_ssize_t)scanned.size, scanned.names,
                               scanned.attributes, (Py_ssize_t)scanned.images,
                               PyBool_FromLong(scanned.linked));
    Py_XDECREF(scanned.names);
    Py_XDECREF(scanned.attributes);
    PyMem_Free(scanned.visible);
    return result;
}

PyObject *kernel_markup(PyObject *module, PyObject *const *arguments, Py_ssize_t number) {
    Py_ssize_t size;
    (void)module;
    if (number != 2 || !PyFrozenSet_CheckExact(arguments[1]))
        return PyErr_Format(PyExc_TypeError, "markup(page, breaks)");
    const char *bytes = PyUnicode_AsUTF8AndSize(arguments[0], &size);
    return bytes == NULL ? NULL : apart(&(Page){bytes, (size_t)size, arguments[1]});
}
