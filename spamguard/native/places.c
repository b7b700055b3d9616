/* Where tokens stand in a message: finds the tokens of a few buckets, which are known by then. */
#include "tokens.h"

static void ask(Asked *asked) {
    for (size_t at = 0; at < asked->count; at++) {
        asked->sieve[asked->buckets[at] % SIEVE / 64] |= UINT64_C(1) << asked->buckets[at] % 64;
        asked->found[at].made = NONE;
    }
}

/* Keeps those of these tokens, in order, whose buckets are asked for. section: of grams. */
static void look(Asked *asked, const uint32_t *tokens, const uint32_t *origins, size_t count,
                 size_t section) {
    for (size_t at = 0; at < count; at++) {
        uint32_t bucket = tokens[at] >> asked->shift, made = origins[at] & ((1 << MADE_BITS) - 1);
        if (!(asked->sieve[bucket % SIEVE / 64] >> bucket % 64 & 1))
            continue;
        for (size_t which = 0; which < asked->count; which++)
            if (asked->buckets[which] == bucket && asked->found[which].made > made)
                asked->found[which] =
                    (Found){tokens[at], made, origins[at] >> MADE_BITS, (uint32_t)section};
    }
}

/* A token, how it was made, the number of its section, its bytes, and those of the other token of a
 * pair. */
static PyObject *told(const Found *found, unsigned int section, const uint8_t *text, size_t size,
                      const uint8_t *other, size_t other_size) {
    return Py_BuildValue("IIIy#y#", found->token, found->made, section, text, (Py_ssize_t)size,
                         other, (Py_ssize_t)other_size);
}

static PyObject *gram_told(const Found *found, const Section *sections) {
    uint8_t text[GRAM_TEXT];
    put_together(sections + found->section, text);
    return told(found, found->section, text + (found->origin >> SIZE_BITS),
                found->origin & ((1 << SIZE_BITS) - 1), text, 0);
}

static PyObject *word_told(const Found *found, const Section *sections, const Token *single) {
    const Token *first = single + found->origin, *other = first + found->made;
    unsigned int section = 0;
    for (size_t before = sections[0].tokens; before <= found->origin;
         before += sections[section].tokens)
        section++;
    const uint8_t *bytes = sections[section].bytes;
    return told(found, section, bytes + first->start, first->size, bytes + other->start,
                found->made == ALONE ? 0 : other->size);
}

static PyObject *told_of(const Asked *asked, const Section *sections, const Token *single,
                         size_t at) {
    if (asked->found[at].made == NONE)
        return PyErr_Format(PyExc_IndexError, "no token lies in bucket %u", asked->buckets[at]);
    return asked->found[at].made == GRAM ? gram_told(asked->found + at, sections)
                                         : word_told(asked->found + at, sections, single);
}

static PyObject *all_told(const Asked *asked, const Section *sections, const Token *single) {
    PyObject *result = PyList_New((Py_ssize_t)asked->count);
    for (size_t at = 0; result && at < asked->count; at++) {
        PyObject *one = told_of(asked, sections, single, at);
        if (one == NULL || PyList_SetItem(result, (Py_ssize_t)at, one) < 0) { /* takes it */
            Py_DECREF(result);
            return NULL;
        }
    }
    return result;
}

PyObject *places(const Hasher *hasher, const Section *sections, size_t number, const Token *single,
                 size_t singles, size_t words, Asked *asked) {
    size_t most = most_tokens(sections, number, singles);
    uint32_t *tokens = PyMem_Malloc((2 * most + 1) * sizeof *tokens);
    asked->found = PyMem_Malloc((asked->count + 1) * sizeof *asked->found);
    PyObject *result = NULL;
    if (tokens != NULL && asked->found != NULL) {
        ask(asked);
        look(asked, tokens, tokens + most,
             narrowed(hasher, single, singles, words, tokens, tokens + most), 0);
        for (size_t at = 0; at < number; at++)
            if (sections[at].kinds & LETTERED)
                look(asked, tokens, tokens + most,
                     grams(hasher, sections + at, tokens, tokens + most), at);
        result = all_told(asked, sections, single);
    } else
        PyErr_NoMemory();
    PyMem_Free(asked->found);
    PyMem_Free(tokens);
    return result;
}

static const Shape shapes[] = {
    {8, 0}, {1, 0}, {8, 0}, {1, 0}, {4, 0}}; /* seeds, kinds, multipliers, classes, buckets */

PyObject *kernel_places(PyObject *module, PyObject *const *arguments, Py_ssize_t number) {
    Fixed views[5];
    (void)module;
    if (number != 8)
        return PyErr_Format(
            PyExc_TypeError,
            "places(texts, seeds, kinds, multipliers, classes, buckets, skipped, shift)");
    size_t skipped = PyLong_AsSize_t(arguments[6]),
           shift = PyErr_Occurred() ? 0 : PyLong_AsSize_t(arguments[7]);
    if (PyErr_Occurred() || fix(views, arguments + 1, shapes, 5) < 0)
        return NULL;
    Asked asked = {.buckets = views[4].data, .count = views[4].count, .shift = (uint32_t)shift};
    PyObject *result = shift < 32 ? of_sections(arguments[0], views, skipped, &asked)
                                  : PyErr_Format(PyExc_ValueError, "tokens have 32 bits");
    release(views, 5);
    return result;
}
