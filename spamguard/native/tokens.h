/* What `tokens.c` and `places.c` share. */
#ifndef SPAMGUARD_TOKENS_H
#define SPAMGUARD_TOKENS_H

#include "kernel.h"

enum { FIRST, SECOND, LAST, LENGTH, LEFT, RIGHT, SKIP, FINAL, MULTIPLIERS };
enum { UNPAIRED = 1, LETTERED = 2 }; /* flags of a section */
enum {
    ALONE,
    NEXT,
    SKIPPING,
    GRAM,
    NONE
}; /* how a token was made; of several in one bucket the first kind counts */

#define MADE_BITS 2
#define SIZE_BITS 4    /* of a gram's size */
#define GRAM_TEXT 2000 /* bytes of a section that grams are made of */
#define SIEVE 1024     /* bits of a filter on buckets: a multiple of 64 */

typedef struct {
    uint64_t hash;
    uint32_t start; /* in its section */
    uint32_t size : 31;
    uint32_t joined : 1; /* whether the next token makes a pair with this one */
} Token;

typedef struct {
    const uint8_t *bytes;
    size_t size;
    uint64_t seed;
    size_t tokens; /* single ones */
    uint8_t kinds; /* UNPAIRED, LETTERED */
} Section;

typedef struct {
    uint64_t by[MULTIPLIERS];
    uint64_t letters; /* seed of grams */
    const uint8_t *classes;
    size_t skipped;
} Hasher;

/* Where the token of a bucket stands. section: of a gram. */
typedef struct {
    uint32_t token, made, origin, section;
} Place;

/* Buckets whose first token is looked for. */
typedef struct {
    const uint32_t *buckets;
    size_t count;
    uint32_t shift; /* of a token, to its bucket */
    uint64_t sieve[SIEVE / 64];
    Place *places;
} Query;

/* The places that the query looks for, as a list. single: all single tokens. words: number of
 * tokens of the body. */
PyObject *places(const Hasher *hasher, const Section *sections, size_t number, const Token *single,
                 size_t singles, size_t words, Query *query);

/* Copies the start of a section, GRAM_TEXT bytes at most, with one space for each run of blanks and
 * none at the ends; returns the size. */
size_t put_together(const Section *section, uint8_t *text);

size_t most_tokens(const Section *sections, size_t number, size_t singles);
size_t narrowed(const Hasher *hasher, const Token *single, size_t singles, size_t words,
                uint32_t *out, uint32_t *origins);
size_t grams(const Hasher *hasher, const Section *section, uint32_t *out, uint32_t *origins);
PyObject *of_sections(PyObject *texts, Fixed *views, size_t skipped, Query *query);

#endif
