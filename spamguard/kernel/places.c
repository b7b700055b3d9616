/* Where tokens stand in a message: of all that it has, those of a few buckets are looked for once it is known which. */
#include "tokens.h"

#include <string.h>

#define PLACE 7 /* numbers that tell where a token stands */

static void ask(Asked *asked) {
    for (size_t at = 0; at < asked->count; at++) {
        asked->sieve[asked->buckets[at] % SIEVE / 64] |= UINT64_C(1) << asked->buckets[at] % 64;
        asked->found[at].made = NONE;
    }
}

/* Keeps those of some tokens, which come in order, that are asked for. section: of grams. */
static void look(Asked *asked, const uint32_t *tokens, const uint32_t *origins, size_t count, size_t section) {
    for (size_t at = 0; at < count; at++) {
        uint32_t bucket = tokens[at] >> asked->shift, made = origins[at] & ((1 << MADE_BITS) - 1);
        if (!(asked->sieve[bucket % SIEVE / 64] >> bucket % 64 & 1))
            continue;
        for (size_t which = 0; which < asked->count; which++)
            if (asked->buckets[which] == bucket && asked->found[which].made > made)
                asked->found[which] = (Found){tokens[at], made, origins[at] >> MADE_BITS, (uint32_t)section};
    }
}

/* Where a token stands: itself, how it was made, its section, start and size there, and those of the other token of a pair. */
static void write_place(const Found *found, const Section *sections, const Token *single, uint32_t *out) {
    memset(out, 0, PLACE * sizeof *out);
    out[0] = found->token, out[1] = found->made;
    if (found->made == GRAM) {
        out[2] = found->section, out[3] = found->origin >> SIZE_BITS, out[4] = found->origin & ((1 << SIZE_BITS) - 1);
        return;
    }
    for (size_t before = sections[0].tokens; before <= found->origin; before += sections[out[2]].tokens)
        out[2]++;
    out[3] = single[found->origin].start, out[4] = single[found->origin].size;
    out[5] = single[found->origin + found->made].start, out[6] = single[found->origin + found->made].size;
}

static PyObject *written(const Asked *asked, const Section *sections, const Token *single) {
    PyObject *result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(asked->count * PLACE * sizeof(uint32_t)));
    uint32_t *out = result ? (uint32_t *)PyBytes_AsString(result) : NULL;
    for (size_t at = 0; result && at < asked->count; at++, out += PLACE) {
        if (asked->found[at].made == NONE) {
            Py_DECREF(result);
            return PyErr_Format(PyExc_IndexError, "no token lies in bucket %u", asked->buckets[at]);
        }
        write_place(asked->found + at, sections, single, out);
    }
    return result;
}

PyObject *places(const Hasher *hasher, const Section *sections, size_t number, const Token *single, size_t singles, size_t words, Asked *asked) {
    size_t most = most_tokens(sections, number, singles);
    uint32_t *tokens = PyMem_Malloc((2 * most + 1) * sizeof *tokens);
    asked->found = PyMem_Malloc((asked->count + 1) * sizeof *asked->found);
    PyObject *result = NULL;
    if (tokens != NULL && asked->found != NULL) {
        ask(asked);
        look(asked, tokens, tokens + most, narrowed(hasher, single, singles, words, tokens, tokens + most), 0);
        for (size_t at = 0; at < number; at++)
            if (sections[at].kinds & LETTERED)
                look(asked, tokens, tokens + most, grams(hasher, sections + at, tokens, tokens + most), at);
        result = written(asked, sections, single);
    } else
        PyErr_NoMemory();
    PyMem_Free(asked->found);
    PyMem_Free(tokens);
    return result;
}

static const Shape shapes[] = {{8, 0}, {1, 0}, {8, 0}, {1, 0}, {4, 0}}; /* seeds, kinds, multipliers, classes, buckets */

PyObject *kernel_places(PyObject *module, PyObject *const *arguments, Py_ssize_t number) {
    Fixed views[5];
    (void)module;
    if (number != 8)
        return PyErr_Format(PyExc_TypeError, "places(texts, seeds, kinds, multipliers, classes, buckets, skipped, shift)");
    size_t skipped = PyLong_AsSize_t(arguments[6]), shift = PyErr_Occurred() ? 0 : PyLong_AsSize_t(arguments[7]);
    if (PyErr_Occurred() || fix(views, arguments + 1, shapes, 5) < 0)
        return NULL;
    Asked asked = {.buckets = views[4].data, .count = views[4].count, .shift = (uint32_t)shift};
    PyObject *result = shift < 32 ? of_sections(arguments[0], views, skipped, &asked) : PyErr_Format(PyExc_ValueError, "tokens have 32 bits");
    release(views, 5);
    return result;
}
