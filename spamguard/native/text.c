/* Decoded text: the loop over characters of `spamguard.mail.text`, which defines punctuation. */
#include "kernel.h"

#include <string.h>

enum { FIRST, LAST, KIND, PARTS };
enum { LETTER, SIGN, UNSEEN };

/* Ranges of characters in order, three numbers each: the first, the last, and the kind. */
typedef struct {
    const uint32_t *parts;
    size_t count;
} Ranges;

static uint32_t kind_of(const Ranges *ranges, uint32_t character) {
    size_t low = 0, high = ranges->count; /* ranges before low end before it, ranges from high on
                                             begin behind it */
    while (low < high) {
        const uint32_t *range = ranges->parts + PARTS * ((low + high) / 2);
        if (character < range[FIRST])
            high = (low + high) / 2;
        else if (character > range[LAST])
            low = (low + high) / 2 + 1;
        else
            return range[KIND];
    }
    return LETTER;
}

static size_t size_of(uint8_t first) {
    return first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

/* The character that these bytes encode. */
static uint32_t character_at(const uint8_t *bytes, size_t size) {
    static const uint8_t of_first[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    uint32_t character = bytes[0] & of_first[size];
    for (size_t at = 1; at < size; at++)
        character = character << 6 | (bytes[at] & 0x3F);
    return character;
}

/* Writes the text without punctuation, which is never longer, and returns its size. */
static size_t write_letters(const Ranges *ranges, const uint8_t *bytes, size_t size, uint8_t *out) {
    size_t written = 0;
    int gap = 0; /* whether a sign stands before this character, and no letter between */
    for (size_t at = 0, width; at < size; at += width) {
        width = size_of(bytes[at]);
        uint32_t kind = width == 1 || width > size - at
                            ? LETTER
                            : kind_of(ranges, character_at(bytes + at, width));
        if (width > size - at)
            width = size - at;
        gap |= kind == SIGN;
        if (kind != LETTER)
            continue;
        if (gap)
            out[written++] = ' ';
        gap = 0;
        for (size_t each = 0; each < width; each++)
            out[written++] = bytes[at + each];
    }
    if (gap)
        out[written++] = ' ';
    return written;
}

static PyObject *letters(const Ranges *ranges, const uint8_t *bytes, size_t size) {
    uint8_t *out = PyMem_Malloc(size + 1);
    if (out == NULL)
        return PyErr_NoMemory();
    size_t written = write_letters(ranges, bytes, size, out);
    PyObject *result = PyUnicode_FromStringAndSize((const char *)out, (Py_ssize_t)written);
    PyMem_Free(out);
    return result;
}

PyObject *kernel_letters(PyObject *module, PyObject *const *arguments, Py_ssize_t number) {
    static const Shape shapes[] = {{sizeof(uint32_t), 0}};
    Fixed ranges;
    Py_ssize_t size;
    (void)module;
    if (number != 2)
        return PyErr_Format(PyExc_TypeError, "letters(text, ranges)");
    const char *bytes = PyUnicode_AsUTF8AndSize(arguments[0], &size);
    if (bytes == NULL || fix(&ranges, arguments + 1, shapes, 1) < 0)
        return NULL;
    PyObject *result =
        letters(&(Ranges){ranges.data, ranges.count / PARTS}, (const uint8_t *)bytes, (size_t)size);
    release(&ranges, 1);
    return result;
}
