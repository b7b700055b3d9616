/* What finding the tokens of a message and finding where some of them stand have in common. */
#ifndef SPAMGUARD_TOKENS_H
#define SPAMGUARD_TOKENS_H

#include "kernel.h"

enum { FIRST, SECOND, LAST, LENGTH, LEFT, RIGHT, SKIP, FINAL, MULTIPLIERS };
enum { UNPAIRED = 1, LETTERED = 2 };        /* what the caller says of a section */
enum { ALONE, NEXT, SKIPPING, GRAM, NONE }; /* how a token was made; of several in one bucket the first of these counts */

#define MADE_BITS 2
#define SIZE_BITS 4 /* of a gram's size */
#define GRAM_TEXT 2000 /* bytes of a section of which grams are made, blanks put together */
#define SIEVE 1024  /* buckets that are told apart at a first glance: a multiple of 64 */

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

/* A token found for a bucket. section: of a gram. */
typedef struct {
    uint32_t token, made, origin, section;
} Found;

/* Buckets of which somebody wants the first token. */
typedef struct {
    const uint32_t *buckets;
    size_t count;
    uint32_t shift; /* of a token, to its bucket */
    uint64_t sieve[SIEVE / 64];
    Found *found;
} Asked;

/* The tokens that are asked for, as a list. single: all single ones; words: how many belong to the text of the body. */
PyObject *places(const Hasher *hasher, const Section *sections, size_t number, const Token *single, size_t singles, size_t words, Asked *asked);

/* The start of a section, one space in place of each run of blanks, none at its ends: GRAM_TEXT bytes at most; its size. */
size_t put_together(const Section *section, uint8_t *text);

size_t most_tokens(const Section *sections, size_t number, size_t singles);
size_t narrowed(const Hasher *hasher, const Token *single, size_t singles, size_t words, uint32_t *out, uint32_t *origins);
size_t grams(const Hasher *hasher, const Section *section, uint32_t *out, uint32_t *origins);
PyObject *of_sections(PyObject *texts, Fixed *views, size_t skipped, Asked *asked);

#endif
