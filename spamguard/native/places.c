/* Where tokens stand in a message: finds the tokens of a few buckets, which are known by then. */
#include "tokens.h"

static void prepare_query(Query *query) {
    for (size_t at = 0; at < query->count; at++) {
        query->sieve[query->buckets[at] % SIEVE / 64] |= UINT64_C(1) << query->buckets[at] % 64;
        query->places[at].made = NONE;
    }
}

/* Keeps those of these tokens, in order, whose buckets are looked for. section: of grams. */
static void match_buckets(Query *query, const uint32_t *tokens, const uint32_t *origins,
                          size_t count, size_t section) {
    for (size_t at = 0; at < count; at++) {
        uint32_t bucket = tokens[at] >> query->shift, made = origins[at] & ((1 << MADE_BITS) - 1);
        if (!(query->sieve[bucket % SIEVE / 64] >> bucket % 64 & 1))
            continue;
        for (size_t number = 0; number < query->count; number++)
            if (query->buckets[number] == bucket && query->places[number].made > made)
                query->places[number] =
                    (Place){tokens[at], made, origins[at] >> MADE_BITS, (uint32_t)section};
    }
}

/* A token, how it was made, the number of its section, its bytes, and those of the other token of a
 * pair. */
static PyObject *build_place(const Place *place, unsigned int section, const uint8_t *text,
                             size_t size, const uint8_t *other, size_t other_size) {
    return Py_BuildValue("IIIy#y#", place->token, place->made, section, text, (Py_ssize_t)size,
                         other, (Py_ssize_t)other_size);
}

static PyObject *gram_place(const Place *place, const Section *sections) {
    uint8_t text[GRAM_TEXT];
    put_together(sections + place->section, text);
    return build_place(place, place->section, text + (place->origin >> SIZE_BITS),
                       place->origin & ((1 << SIZE_BITS) - 1), text, 0);
}

static PyObject *word_place(const Place *place, const Section *sections, const Token *single) {
    const Token *first = single + place->origin, *other = first + place->made;
    unsigned int section = 0;
    for (size_t before = sections[0].tokens; before <= place->origin;
         before += sections[section].tokens)
        section++;
    const uint8_t *bytes = sections[section].bytes;
    return build_place(place, section, bytes + first->start, first->size, bytes + other->start,
                       place->made == ALONE ? 0 : other->size);
}

static PyObject *bucket_place(const Query *query, const Section *sections, const Token *single,
                              size_t at) {
    if (query->places[at].made == NONE)
        return PyErr_Format(PyExc_IndexError, "no token lies in bucket %u", query->buckets[at]);
    return query->places[at].made == GRAM ? gram_place(query->places + at, sections)
                                          : word_place(query->places + at, sections, single);
}

static PyObject *all_places(const Query *query, const Section *sections, const Token *single) {
    PyObject *result = PyList_New((Py_ssize_t)query->count);
    for (size_t at = 0; result && at < query->count; at++) {
        PyObject *place = bucket_place(query, sections, single, at);
        if (place == NULL || PyList_SetItem(result, (Py_ssize_t)at, place) < 0) { /* takes it */
            Py_DECREF(result);
            return NULL;
        }
    }
    return result;
}

PyObject *places(const Hasher *hasher, const Section *sections, size_t number, const Token *single,
                 size_t singles, size_t words, Query *query) {
    size_t most = most_tokens(sections, number, singles);
    uint32_t *tokens = PyMem_Malloc((2 * most + 1) * sizeof *tokens);
    query->places = PyMem_Malloc((query->count + 1) * sizeof *query->places);
    PyObject *result = NULL;
    if (tokens != NULL && query->places != NULL) {
        prepare_query(query);
        match_buckets(query, tokens, tokens + most,
             narrowed(hasher, single, singles, words, tokens, tokens + most), 0);
        for (size_t at = 0; at < number; at++)
            if (sections[at].kinds & LETTERED)
                match_buckets(query, tokens, tokens + most,
                     grams(hasher, sections + at, tokens, tokens + most), at);
        result = all_places(query, sections, single);
    } else
        PyErr_NoMemory();
    PyMem_Free(query->places);
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
    Query query = {.buckets = views[4].data, .count = views[4].count, .shift = (uint32_t)shift};
    PyObject *result = shift < 32 ? of_sections(arguments[0], views, skipped, &query)
                                  : PyErr_Format(PyExc_ValueError, "tokens have 32 bits");
    release(views, 5);
    return result;
}
