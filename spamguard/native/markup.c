/* HTML without its tags: the loop over characters of `spamguard.mail.html`, which defines what a
 * tag is. */
#include "kernel.h"

#include <string.h>

typedef struct {
    const char *bytes; /* UTF-8 */
    size_t size;
    PyObject *breaks; /* the names of tags at which a reader sees a gap */
} Page;

#define REMEMBERED 256
enum { BREAK = 1, LINK = 2, LINK_END = 4, IMAGE = 8 }; /* flags of a name */

/* A name, or attributes, seen before. */
typedef struct {
    const char *bytes;
    size_t size;
    unsigned means;
} Known;

/* The results so far. Names and attributes are keys of dictionaries: each once, in order. A small
 * cache of recent ones saves making objects, because most of them repeat. */
typedef struct {
    char *visible;
    size_t size;
    PyObject *names, *attributes;
    Known names_known[REMEMBERED], attributes_known[REMEMBERED];
    size_t images;
    int within, linked; /* within a link; whether an image stood there */
} Found;

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
    const char *found = memchr(page->bytes + at, byte, page->size - at);
    return found == NULL ? page->size : (size_t)(found - page->bytes);
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

static void show(Found *found, const char *bytes, size_t size) {
    memcpy(found->visible + found->size, bytes, size);
    found->size += size;
}

static int is(const char *bytes, size_t size, const char *name) {
    return size == strlen(name) && memcmp(bytes, name, size) == 0;
}

static void follow_links(Found *found, unsigned means) {
    if (means & (LINK | LINK_END))
        found->within = means & LINK;
    if (means & IMAGE) {
        found->images++;
        found->linked |= found->within;
    }
}

/* The slot of the cache for a text; it may hold another text, which is then replaced. */
static Known *place_of(Known *known, const char *bytes, size_t size) {
    uint64_t first = 0, last = 0;
    size_t some = size < sizeof first ? size : sizeof first;
    memcpy(&first, bytes, some);
    memcpy(&last, bytes + size - some, some);
    return known +
           ((first ^ (last + size) * UINT64_C(0x9E3779B97F4A7C15)) * UINT64_C(0xD6E8FEB86659FD93) >>
            56);
}

static int is_known(const Known *known, const char *bytes, size_t size) {
    return known->bytes != NULL && known->size == size && memcmp(known->bytes, bytes, size) == 0;
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
static int keep_attributes(Found *found, const char *bytes, size_t size) {
    Known *known = place_of(found->attributes_known, bytes, size);
    if (is_known(known, bytes, size))
        return 0;
    PyObject *text = keep(found->attributes, bytes, size);
    if (text == NULL)
        return -1;
    Py_DECREF(text);
    *known = (Known){bytes, size, 0};
    return 0;
}

/* The flags of a name; -1 with an error set. */
static int keep_name(Found *found, const Page *page, const char *bytes, size_t size) {
    Known *known = place_of(found->names_known, bytes, size);
    if (is_known(known, bytes, size))
        return (int)known->means;
    PyObject *text = keep(found->names, bytes, size);
    int means = text == NULL ? -1 : PySet_Contains(page->breaks, text);
    Py_XDECREF(text);
    if (means < 0)
        return -1;
    means |= is(bytes, size, "a")     ? LINK
             : is(bytes, size, "/a")  ? LINK_END
             : is(bytes, size, "img") ? IMAGE
                                      : 0;
    *known = (Known){bytes, size, (unsigned)means};
    return means;
}

/* -1 with an error set. */
static int add(Found *found, const Page *page, size_t start, const Tag *tag) {
    if (keep_attributes(found, page->bytes + tag->name_end, tag->end - tag->name_end) < 0)
        return -1;
    int means = keep_name(found, page, page->bytes + start, tag->name_end - start);
    if (means < 0)
        return -1;
    if (means & BREAK)
        show(found, " ", 1);
    follow_links(found, (unsigned)means);
    return 0;
}

/* Copies everything between the tags, which is never longer than the page. -1 with an error set. */
static int take_apart(const Page *page, Found *found) {
    Tag tag;
    for (size_t at = 0; at < page->size;) {
        size_t open = find(page, at, '<');
        show(found, page->bytes + at, open - at);
        if (open == page->size)
            break;
        if (!take_tag(page, open + 1, &tag)) {
            show(found, "<", 1);
            at = open + 1;
            continue;
        }
        if (add(found, page, open + 1, &tag) < 0)
            return -1;
        at = tag.end + (tag.end < page->size && page->bytes[tag.end] == '>');
    }
    return 0;
}

static PyObject *apart(const Page *page) {
    Found found = {
        .visible = PyMem_Malloc(page->size + 1), .names = PyDict_New(), .attributes = PyDict_New()};
    PyObject *result = NULL;
    if (found.visible == NULL)
        PyErr_NoMemory();
    else if (found.names != NULL && found.attributes != NULL && take_apart(page, &found) == 0)
        result = Py_BuildValue("s#OOnN", found.visible, (Py_ssize_t)found.size, found.names,
                               found.attributes, (Py_ssize_t)found.images,
                               PyBool_FromLong(found.linked));
    Py_XDECREF(found.names);
    Py_XDECREF(found.attributes);
    PyMem_Free(found.visible);
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
