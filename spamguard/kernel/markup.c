/* HTML taken apart: the loop over characters of `spamguard.mail.html`, where it is said what a tag is. */
#include "kernel.h"

#include <string.h>

typedef struct {
    const char *bytes; /* UTF-8 */
    size_t size;
    PyObject *breaks; /* the names of tags at which a reader sees a gap */
} Page;

/* What has been found so far. Names and attributes are keys of dictionaries: each once, in order. */
typedef struct {
    char *visible;
    size_t size;
    PyObject *names, *attributes;
    size_t images;
    int within, linked; /* within a link; whether an image stood there */
} Found;

typedef struct {
    size_t name_end, end; /* of its attributes */
} Tag;

static int is_blank(char byte) { return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r' || byte == '\f'; }

static int ends_name(char byte) { return byte == '<' || byte == '>' || byte == '/' || is_blank(byte); }

static int opens_name(char byte) { return byte == '/' || byte == '!' || byte == '?' || (byte >= 'a' && byte <= 'z'); }

static size_t find(const Page *page, size_t at, char byte) {
    const char *found = memchr(page->bytes + at, byte, page->size - at);
    return found == NULL ? page->size : (size_t)(found - page->bytes);
}

/* The tag whose name begins at `at`; whether there is one. */
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

static int is(const char *bytes, size_t size, const char *name) { return size == strlen(name) && memcmp(bytes, name, size) == 0; }

static void follow_links(Found *found, const char *name, size_t size) {
    if (is(name, size, "a"))
        found->within = 1;
    else if (is(name, size, "/a"))
        found->within = 0;
    else if (is(name, size, "img")) {
        found->images++;
        found->linked |= found->within;
    }
}

/* Keeps a text as a key; what it is, or NULL with an error set. The caller owns it. */
static PyObject *keep(PyObject *keys, const char *bytes, size_t size) {
    PyObject *text = PyUnicode_FromStringAndSize(bytes, (Py_ssize_t)size);
    if (text == NULL || PyDict_SetItem(keys, text, Py_None) == 0)
        return text;
    Py_DECREF(text);
    return NULL;
}

/* -1 with an error set. */
static int add(Found *found, const Page *page, size_t start, const Tag *tag) {
    const char *name = page->bytes + start;
    PyObject *attributes = keep(found->attributes, page->bytes + tag->name_end, tag->end - tag->name_end);
    PyObject *key = attributes == NULL ? NULL : keep(found->names, name, tag->name_end - start);
    int gap = key == NULL ? -1 : PySet_Contains(page->breaks, key);
    Py_XDECREF(attributes);
    Py_XDECREF(key);
    if (gap > 0)
        show(found, " ", 1);
    follow_links(found, name, tag->name_end - start);
    return gap < 0 ? -1 : 0;
}

/* Everything between the tags is shown; what is shown is never longer than the page. -1 with an error set. */
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
    Found found = {.visible = PyMem_Malloc(page->size + 1), .names = PyDict_New(), .attributes = PyDict_New()};
    PyObject *result = NULL;
    if (found.visible == NULL)
        PyErr_NoMemory();
    else if (found.names != NULL && found.attributes != NULL && take_apart(page, &found) == 0)
        result = Py_BuildValue("s#OOnN", found.visible, (Py_ssize_t)found.size, found.names, found.attributes, (Py_ssize_t)found.images,
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
