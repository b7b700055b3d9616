/* The data of a message: the look at every byte of it that `spamguard.wire.data` takes, where it is said what is looked for. */
#include "kernel.h"

#include <string.h>

enum { BARE_CR = 1, BARE_LF = 2, NUL = 4, DOT = 8 };
enum { BLOCK = 64 };

/* What is seen at some places, of each two more bytes. Comparisons and nothing else, so that compilers work on many bytes at once. */
static inline uint8_t seen(const uint8_t *text, size_t places) {
    uint8_t found = 0;
    for (size_t at = 0; at < places; at++) {
        uint8_t cr = text[at] == '\r', lf = text[at + 1] == '\n', dot = text[at + 2] == '.';
        found |= (uint8_t)((cr & !lf) * BARE_CR | (lf & !cr) * BARE_LF | (text[at] == 0) * NUL | (cr & lf & dot) * DOT);
    }
    return found;
}

/* The same at the last places. A CR at the very end may be half of a line end. */
static uint8_t seen_last(const uint8_t *text, size_t places) {
    uint8_t copy[BLOCK + 4];
    memcpy(copy, text, places);
    copy[places] = places && copy[places - 1] == '\r' ? '\n' : ' ';
    copy[places + 1] = ' ';
    return seen(copy, places);
}

static Py_ssize_t dot_line(const uint8_t *text, Py_ssize_t from) {
    while (text[from] != '\r' || text[from + 1] != '\n' || text[from + 2] != '.')
        from++;
    return from;
}

PyObject *kernel_line_ends(PyObject *module, PyObject *const *arguments, Py_ssize_t number) {
    char *bytes;
    Py_ssize_t size, at = 0, dot = -1;
    (void)module;
    if (number != 1)
        return PyErr_Format(PyExc_TypeError, "line_ends(text)");
    if (PyBytes_AsStringAndSize(arguments[0], &bytes, &size) < 0)
        return NULL;
    const uint8_t *text = (const uint8_t *)bytes;
    uint8_t found = size && text[0] == '\n' ? BARE_LF : 0;
    while (at < size) {
        Py_ssize_t left = size - at;
        uint8_t here = left >= BLOCK + 2 ? seen(text + at, BLOCK) : seen_last(text + at, (size_t)left);
        if (here & DOT && dot < 0)
            dot = dot_line(text, at);
        found |= here;
        at += left >= BLOCK + 2 ? BLOCK : left;
    }
    return Py_BuildValue("in", found & (BARE_CR | BARE_LF | NUL), dot);
}
