/* Text to token hashes: the loop over bytes of `spamguard.mail.extract`, which says what is hashed
 * and why.
 *
 * Tokens are runs of bytes that the caller's table marks. The hash of a token comes from the seed
 * of its section, its first sixteen bytes, its last eight and its length. Neighbours are hashed as
 * pairs, and so are the first tokens behind the body with one token between. Of what people write,
 * some grams of five characters are hashed. The results are the same bits as numpy's: unsigned
 * arithmetic wraps in both.
 */
#include "tokens.h"

#include <stdbool.h>
#include <string.h>

enum { KIND_WORD, KIND_CLUE, KIND_PAIR, KIND_GRAM };

#define CLASSES 256
#define WINDOW 64
#define MOST_TOKENS                                                                                \
    (UINT32_MAX / 64) /* single ones, far more than are ever read: all numbers fit 32 bits */
#define BOXES(tokens) (2 * (tokens) + 256)
#define KIND_SHIFT 30
#define NARROW_SHIFT 34 /* keeps thirty bits of a hash, below two for its kind */
#define EARLY_BORDER 2  /* tokens that must follow the left one of a pair with a gap */
#define GRAM_CHARACTERS 5
#define GRAM_BYTES 8 /* a gram has fewer characters if they take more */
#define GRAM_MASK 3  /* of a hash: grams are kept if these bits are zero */

static uint64_t fold(uint64_t value) { return value ^ (value >> 32); }

/* Up to eight bytes as a number, the first one lowest; nothing behind them is read. */
static uint64_t load(const uint8_t *bytes, size_t size) {
    uint64_t value = 0;
    memcpy(&value, bytes, size < sizeof value ? size : sizeof value);
    return value;
}

/* `load` where eight bytes may be read: it saves a call for nearly every token. */
static uint64_t load_within(const uint8_t *bytes, size_t size, const uint8_t *end) {
    uint64_t value;
    if ((size_t)(end - bytes) < sizeof value)
        return load(bytes, size);
    memcpy(&value, bytes, sizeof value);
    return size < sizeof value ? value & ((UINT64_C(1) << (8 * size)) - 1) : value;
}

static uint64_t hash_token(const Hasher *hasher, const uint8_t *start, size_t size,
                           const Section *section) {
    const uint8_t *end = section->bytes + section->size;
    uint64_t value = fold((load_within(start, size, end) ^ section->seed) * hasher->by[FIRST]);
    if (size > 8) {
        value = fold((value ^ load_within(start + 8, size - 8, end)) * hasher->by[SECOND]);
        value ^= load(start + size - 8, 8) ^ ((uint64_t)size * hasher->by[LENGTH]);
        value = fold(value * hasher->by[LAST]);
    }
    return fold(value * hasher->by[FINAL]);
}

/* Which of up to 64 bytes belong to tokens, the first one in the lowest bit. */
static uint64_t marks(const uint8_t *classes, const uint8_t *bytes, size_t size) {
    uint64_t members = 0;
    size = size < WINDOW ? size : WINDOW;
    for (size_t at = size; at-- > 0;)
        members = members << 1 | (classes[bytes[at]] & 1);
    return members;
}

/* The tokens of one section, in order. There must be room for (size + 1) / 2 of them, because a
 * byte parts any two. Goes from edge to edge, 64 bytes at a time: a loop over bytes would cost a
 * wrong branch prediction at both ends of each token. */
static size_t hash_section(const Hasher *hasher, const Section *section, Token *out) {
    size_t count = 0, start = 0;
    uint64_t inside = 0; /* whether the byte before belongs to a token */
    for (size_t window = 0; window <= section->size;
         window += WINDOW) { /* one window more, in which the last token ends */
        uint64_t marked = marks(hasher->classes, section->bytes + window, section->size - window);
        uint64_t open = inside;
        for (uint64_t edges = marked ^ (marked << 1 | inside); edges;
             edges &= edges - 1, open ^= 1) {
            size_t here = window + (size_t)__builtin_ctzll(edges);
            if (!open)
                start = here;
            else
                out[count++] = (Token){
                    .hash = hash_token(hasher, section->bytes + start, here - start, section),
                    .start = (uint32_t)start,
                    .size = (here - start) & (UINT32_MAX >> 1), /* MOST_TOKENS bounds it */
                    .joined = !(section->kinds & UNPAIRED),
                };
        }
        inside = marked >> (WINDOW - 1);
    }
    if (count)
        out[count - 1].joined = 0; /* pairs never reach into the next section */
    return count;
}

static uint32_t narrow(uint64_t hash, uint32_t kind) {
    return (uint32_t)(hash >> NARROW_SHIFT) | (kind << KIND_SHIFT);
}

static uint32_t pair(const Hasher *hasher, uint64_t left, uint64_t right, uint64_t gap,
                     uint32_t kind) {
    uint64_t mixed = left * hasher->by[LEFT] + right * hasher->by[RIGHT] + gap * hasher->by[SKIP];
    return narrow(fold(mixed) * hasher->by[FINAL], kind);
}

static uint32_t origin(size_t number, uint32_t made) {
    return (uint32_t)number << MADE_BITS | made;
}

/* All single tokens, pairs, and pairs with a gap: at most three for each single one. words: number
 * of tokens of the body. origins, unless NULL: for each token the number of the single token where
 * it begins, and how it was made. */
size_t narrowed(const Hasher *hasher, const Token *single, size_t singles, size_t words,
                uint32_t *out, uint32_t *origins) {
    size_t count = 0, early = singles - words < hasher->skipped ? singles : words + hasher->skipped;
    for (size_t at = 0; at < singles; at++) {
        size_t first = count;
        out[count++] = narrow(single[at].hash, at < words ? KIND_WORD : KIND_CLUE);
        if (single[at].joined)
            out[count++] = pair(hasher, single[at].hash, single[at + 1].hash, 0, KIND_PAIR);
        if (single[at].joined && at >= words && at + EARLY_BORDER < early && single[at + 1].joined)
            out[count++] = pair(hasher, single[at].hash, single[at + 2].hash, 1, KIND_GRAM);
        for (uint32_t made = ALONE; origins && first + made < count; made++)
            origins[first + made] = origin(at, made);
    }
    return count;
}

static bool is_blank(uint8_t byte) { return byte == ' ' || (byte >= '\t' && byte <= '\r'); }

size_t put_together(const Section *section, uint8_t *text) {
    size_t size = 0;
    bool apart = false;
    for (size_t at = 0; at < section->size && size < GRAM_TEXT; at++) {
        uint8_t byte = section->bytes[at];
        if (is_blank(byte)) {
            apart = size > 0;
            continue;
        }
        if (apart)
            text[size++] = ' ';
        apart = false;
        if (size < GRAM_TEXT)
            text[size++] = byte;
    }
    return size;
}

/* Where the characters of UTF-8 start, then where the last one ends; returns their number. */
static size_t characters(const uint8_t *text, size_t size, uint16_t *starts) {
    size_t count = 0;
    for (size_t at = 0; at < size; at++) {
        starts[count] = (uint16_t)at;
        count += (text[at] & 0xC0) != 0x80;
    }
    starts[count] = (uint16_t)size;
    return count;
}

/* The size of the gram that starts with this character; characters of damaged text may take more
 * than GRAM_BYTES. */
static size_t gram_size(const uint16_t *starts) {
    for (size_t most = GRAM_CHARACTERS; most > 0; most--)
        if (starts[most] - starts[0] <= GRAM_BYTES)
            return (size_t)(starts[most] - starts[0]);
    return GRAM_BYTES;
}

/* `hash_token` for a gram. GRAM_BYTES may always be read. */
static uint64_t hash_gram(const Hasher *hasher, const uint8_t *start, size_t size) {
    uint64_t value;
    memcpy(&value, start, sizeof value);
    value &= UINT64_MAX >> (8 * (GRAM_BYTES - size));
    return fold(fold((value ^ hasher->letters) * hasher->by[FIRST]) * hasher->by[FINAL]);
}

/* The grams of one section that are kept, with repeats. There must be room for `most_grams`.
 * origins: as in `narrowed`, with the position of a gram in the text put together. */
size_t grams(const Hasher *hasher, const Section *section, uint32_t *out, uint32_t *origins) {
    uint8_t bytes[GRAM_TEXT + GRAM_BYTES] = {0};
    uint16_t starts[GRAM_TEXT + 1];
    size_t count = 0, size = put_together(section, bytes), last = characters(bytes, size, starts);
    for (size_t at = 0; at + GRAM_CHARACTERS <= last; at++) {
        size_t size_of_gram = last == size ? GRAM_CHARACTERS : gram_size(starts + at);
        uint64_t hash = hash_gram(hasher, bytes + starts[at], size_of_gram);
        out[count] = narrow(hash, KIND_GRAM);
        if (origins)
            origins[count] = origin((size_t)starts[at] << SIZE_BITS | size_of_gram, GRAM);
        count += (hash & GRAM_MASK) == 0;
    }
    return count;
}

/* The most grams that a section can have. One is written for each character, even if it is not
 * kept. */
static size_t most_grams(const Section *section) {
    if (!(section->kinds & LETTERED))
        return 0;
    return section->size < GRAM_TEXT ? section->size : GRAM_TEXT;
}

size_t most_tokens(const Section *sections, size_t number, size_t singles) {
    size_t most = 3 * singles;
    for (size_t at = 0; at < number; at++)
        most += most_grams(sections + at);
    return most;
}

/* The number of boxes, as a power of two: about one or two tokens for each box. */
static uint32_t box_bits(size_t count) {
    uint32_t bits = 8;
    while (bits < 24 && (size_t)1 << bits < count)
        bits++;
    return bits;
}

/* Puts tokens into boxes by their top bits; all but the first two bits are as good as random.
 * boxes: room for BOXES(count). */
static void box(const uint32_t *tokens, size_t count, uint32_t *boxes, uint32_t *out) {
    uint32_t bits = box_bits(count), before = 0;
    memset(boxes, 0, sizeof *boxes << bits);
    for (size_t at = 0; at < count; at++)
        boxes[tokens[at] >> (32 - bits)]++;
    for (size_t number = 0; number < (size_t)1 << bits; number++) {
        uint32_t here = boxes[number];
        boxes[number] = before;
        before += here;
    }
    for (size_t at = 0; at < count; at++)
        out[boxes[tokens[at] >> (32 - bits)]++] = tokens[at];
}

/* Sorts tokens that are nearly in order, without repeats, and returns their number. Nobody can fill
 * one box with different tokens without the key, and equal ones cost nothing. */
static size_t insert_all(const uint32_t *boxed, size_t count, uint32_t *out) {
    size_t kept = 0;
    for (size_t at = 0; at < count; at++) {
        size_t to = kept;
        while (to && out[to - 1] > boxed[at])
            to--;
        if (to && out[to - 1] == boxed[at])
            continue;
        if (to < kept) /* else it is in order, as most are: no call */
            memmove(out + to + 1, out + to, (kept - to) * sizeof *out);
        out[to] = boxed[at];
        kept++;
    }
    return kept;
}

/* The distinct tokens, sorted, as bytes. words: number of single tokens of the body. */
static PyObject *distinct(const Hasher *hasher, const Section *sections, size_t number,
                          const Token *single, size_t singles, size_t words) {
    size_t most = most_tokens(sections, number, singles);
    uint32_t *tokens = PyMem_Malloc((2 * most + BOXES(most)) * sizeof *tokens);
    if (tokens == NULL)
        return PyErr_NoMemory();
    size_t count = narrowed(hasher, single, singles, words, tokens, NULL);
    for (size_t at = 0; at < number; at++)
        if (sections[at].kinds & LETTERED)
            count += grams(hasher, sections + at, tokens + count, NULL);
    box(tokens, count, tokens + 2 * most, tokens + most);
    count = insert_all(tokens + most, count, tokens);
    PyObject *result =
        PyBytes_FromStringAndSize((const char *)tokens, (Py_ssize_t)(count * sizeof *tokens));
    PyMem_Free(tokens);
    return result;
}

/* The distinct tokens of the sections or, unless `query` is NULL, the places that it looks for.
 * longest: the most single tokens that the sections can have. */
static PyObject *hashed(const Hasher *hasher, Section *sections, size_t number, size_t longest,
                        Query *query) {
    size_t singles = 0, words = 0;
    Token *single = PyMem_Malloc((longest + 1) * sizeof *single);
    if (single == NULL)
        return PyErr_NoMemory();
    for (size_t at = 0; at < number; at++) {
        singles += sections[at].tokens = hash_section(hasher, sections + at, single + singles);
        words = at == 0 ? singles : words; /* the first section is the text of the body */
    }
    PyObject *result = query ? places(hasher, sections, number, single, singles, words, query)
                             : distinct(hasher, sections, number, single, singles, words);
    PyMem_Free(single);
    return result;
}

/* Fills in the sections; returns the most single tokens that they can have, or -1 with an error
 * set. */
static Py_ssize_t take_sections(PyObject *texts, const Fixed *seeds, const Fixed *kinds,
                                Section *sections) {
    size_t longest = 0;
    for (size_t at = 0; at < kinds->count; at++) {
        PyObject *text =
            PyTuple_GetItem(texts, (Py_ssize_t)at); /* borrowed: the caller's tuple holds it */
        char *bytes;
        Py_ssize_t size;
        if (text == NULL || PyBytes_AsStringAndSize(text, &bytes, &size) < 0)
            return -1;
        longest += ((size_t)size + 1) / 2;
        if (longest > MOST_TOKENS) {
            PyErr_NoMemory();
            return -1;
        }
        sections[at].bytes = (const uint8_t *)bytes;
        sections[at].size = (size_t)size;
        sections[at].seed = ((const uint64_t *)seeds->data)[at];
        sections[at].kinds = ((const uint8_t *)kinds->data)[at];
    }
    return (Py_ssize_t)longest;
}

PyObject *of_sections(PyObject *texts, Fixed *views, size_t skipped, Query *query) {
    const Fixed *seeds = views, *kinds = views + 1, *multipliers = views + 2, *classes = views + 3;
    Py_ssize_t number = PyTuple_Size(texts); /* with an error set unless it is a tuple */
    if (number < 0)
        return NULL;
    if ((size_t)number + 1 != seeds->count || (size_t)number != kinds->count ||
        multipliers->count != MULTIPLIERS || classes->count != CLASSES)
        return PyErr_Format(PyExc_ValueError, "sizes do not fit together");
    Hasher hasher = {.letters = ((const uint64_t *)seeds->data)[number],
                     .classes = classes->data,
                     .skipped = skipped};
    memcpy(hasher.by, multipliers->data, sizeof hasher.by);
    Section *sections = PyMem_Malloc(((size_t)number + 1) * sizeof *sections);
    if (sections == NULL)
        return PyErr_NoMemory();
    Py_ssize_t longest = take_sections(texts, seeds, kinds, sections);
    PyObject *result =
        longest < 0 ? NULL : hashed(&hasher, sections, (size_t)number, (size_t)longest, query);
    PyMem_Free(sections);
    return result;
}

static const Shape shapes[] = {
    {8, 0}, {1, 0}, {8, 0}, {1, 0}}; /* seeds, kinds, multipliers, classes */

PyObject *kernel_tokens(PyObject *module, PyObject *const *arguments, Py_ssize_t number) {
    Fixed views[4];
    (void)module;
    if (number != 6)
        return PyErr_Format(PyExc_TypeError,
                            "tokens(texts, seeds, kinds, multipliers, classes, skipped)");
    size_t skipped = PyLong_AsSize_t(arguments[5]);
    if ((skipped == (size_t)-1 && PyErr_Occurred()) || fix(views, arguments + 1, shapes, 4) < 0)
        return NULL;
    PyObject *result = of_sections(arguments[0], views, skipped, NULL);
    release(views, 4);
    return result;
}
