/* Words in disguise: the loop over bytes of `spamguard.mail.text`, which defines what they are. */
#include "kernel.h"

#include <string.h>

#define CLASSES 256
#define SIGN '0'                                /* a sign that may stand for a letter */
#define GAP ' '                                 /* parts words */
#define OTHER '.'                               /* a letter or digit of no such word */
#define MASKED 0x613061                         /* "a0a": a sign between letters */
#define FOUR_APART UINT64_C(0x2061206120612061) /* " a a a a" */

typedef struct {
    const uint8_t *bytes;
    size_t size;
    const uint8_t *kinds; /* of each byte */
    const uint8_t *meant; /* what each byte stands for */
    size_t longest, max_words; /* a word has fewer bytes; words that are looked at */
} Text;

typedef struct {
    size_t start, end;
} Word;

static uint8_t kind(const Text *text, size_t at) { return text->kinds[text->bytes[at]]; }

/* Where the next sign between letters is, from `at` on; the size of the text if there is none. */
static size_t find_masked(const Text *text, size_t at) {
    uint32_t three = 0;
    for (; at < text->size; at++) {
        three = (three << 8 | kind(text, at)) & 0xFFFFFF;
        if (three == MASKED)
            return at - 2;
    }
    return text->size;
}

static int four_apart(const Text *text) {
    uint64_t eight = 0;
    for (size_t at = 0; at < text->size; at++) {
        if ((text->bytes[at] & 0xC0) == 0x80) /* not the first byte of its character */
            continue;
        eight = eight << 8 | kind(text, at);
        if (eight == FOUR_APART)
            return 1;
    }
    return 0;
}

static int is_letter_or_digit(uint8_t byte) {
    return (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') ||
           (byte >= 'A' && byte <= 'Z');
}

/* Whether the word is part of a number or an address, by the dots around it. */
static int dotted(const Text *text, Word word) {
    if (word.start && text->bytes[word.start - 1] == '.')
        return 1;
    return word.end + 1 < text->size && text->bytes[word.end] == '.' &&
           is_letter_or_digit(text->bytes[word.end + 1]);
}

/* Whether the word is short, has few enough signs, and consists of signs and letters. */
static int is_disguised(const Text *text, Word word) {
    size_t signs = 0;
    for (size_t at = word.start; at < word.end; at++) {
        if (kind(text, at) == OTHER)
            return 0;
        signs += kind(text, at) == SIGN;
    }
    return word.end - word.start < text->longest && 3 * signs <= word.end - word.start;
}

/* The word around a place; empty unless it is in disguise. */
static Word masked_word(const Text *text, size_t place) {
    Word word = {place, place};
    while (word.start && place - word.start < text->longest && kind(text, word.start - 1) != GAP)
        word.start--;
    while (word.end < text->size && word.end - place < text->longest && kind(text, word.end) != GAP)
        word.end++;
    int apart = !dotted(text, word);
    while (word.end > word.start && text->bytes[word.end - 1] == '!')
        word.end--;
    return apart && is_disguised(text, word) ? word : (Word){place, place};
}

/* The text with disguised words in plain letters; the same object if it has none. */
static PyObject *in_letters(const Text *text, PyObject *original) {
    PyObject *result = NULL;
    uint8_t *out = NULL;
    size_t place = find_masked(text, 0);
    for (size_t count = 0; count < text->max_words && place < text->size; count++) {
        Word word = masked_word(text, place);
        if (word.end > word.start && result == NULL) {
            result = PyBytes_FromStringAndSize((const char *)text->bytes, (Py_ssize_t)text->size);
            if (result == NULL)
                return NULL;
            out = (uint8_t *)(void *)PyBytes_AsString(result);
        }
        for (size_t at = word.start; at < word.end; at++)
            out[at] = text->meant[text->bytes[at]];
        place = find_masked(text, word.end > place ? word.end : place + 1);
    }
    if (result != NULL)
        return result;
    Py_INCREF(original);
    return original;
}

static PyObject *undisguised(const Text *text, PyObject *original) {
    PyObject *letters = in_letters(text, original);
    if (letters == NULL)
        return NULL;
    PyObject *result = PyTuple_Pack(2, letters, four_apart(text) ? Py_True : Py_False);
    Py_DECREF(letters);
    return result;
}

PyObject *kernel_undisguised(PyObject *module, PyObject *const *arguments, Py_ssize_t number) {
    static const Shape shapes[] = {{1, 0}, {1, 0}, {1, 0}}; /* text, kinds, meant */
    Fixed views[3];
    PyObject *result = NULL;
    (void)module;
    if (number != 5)
        return PyErr_Format(PyExc_TypeError, "undisguised(text, kinds, meant, longest, most)");
    size_t longest = PyLong_AsSize_t(arguments[3]),
           most = PyErr_Occurred() ? 0 : PyLong_AsSize_t(arguments[4]);
    if (PyErr_Occurred() || fix(views, arguments, shapes, 3) < 0)
        return NULL;
    Text text = {views[0].data, views[0].count, views[1].data, views[2].data, longest, most};
    if (views[1].count == CLASSES && views[2].count == CLASSES)
        result = undisguised(&text, arguments[0]);
    else
        PyErr_SetString(PyExc_ValueError, "sizes do not fit together");
    release(views, 3);
    return result;
}
